// Every MPI process sends a number to every other, with nothing of this project: what a machine's MPI must
// do before a test of ours can say anything. Exit 0 if the numbers came.
#include <mpi.h>

#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<int> sent(static_cast<std::size_t>(size), rank), received(sent.size(), -1);
  MPI_Alltoall(sent.data(), 1, MPI_INT, received.data(), 1, MPI_INT, MPI_COMM_WORLD);
  int wrong = 0;
  for (int from = 0; from < size; ++from) wrong += received[static_cast<std::size_t>(from)] != from;
  MPI_Finalize();
  return wrong != 0;
}
