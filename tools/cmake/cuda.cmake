# Is there a CUDA toolkit that works? Decided by compiling and linking a program with it, never by
# the name of a package. Sets TILEFOLD_WITH_CUDA, which picks files (kernels/backend.cc or
# no_cuda.cc); no source asks for it.

set(TILEFOLD_CUDA AUTO CACHE STRING "AUTO: use CUDA if it works; ON: required; OFF: never")
set_property(CACHE TILEFOLD_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TILEFOLD_CUDA_ARCHITECTURES "80;90a" CACHE STRING "GPU architectures to compile for")

set(TILEFOLD_WITH_CUDA FALSE)
set(absence "switched off by TILEFOLD_CUDA=OFF")
if(NOT TILEFOLD_CUDA STREQUAL "OFF")
  if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    # Toolkits often lie outside the search path.
    find_program(TILEFOLD_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin
                                          /usr/local/cuda/bin)
    if(TILEFOLD_NVCC)
      set(CMAKE_CUDA_COMPILER ${TILEFOLD_NVCC})
    endif()
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${TILEFOLD_CUDA_ARCHITECTURES})
  include(CheckLanguage)
  check_language(CUDA)
  set(absence "no CUDA compiler that works (nvcc) was found")
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    # Set where CMake does not know the flag of its compiler (3.25 with CUDA 13).
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit)
    set(probe ${CMAKE_BINARY_DIR}/CMakeFiles/cuda_probe.cu)
    file(WRITE ${probe} "
      #include <cublasLt.h>
      #include <cuda_runtime.h>
      __global__ void kernel(int* out) { *out = 1; }
      int main() {
        int devices = 0;
        kernel<<<1, 1>>>(nullptr);
        return cudaGetDeviceCount(&devices) + static_cast<int>(cublasLtGetVersion() == 0);
      }")
    if(TARGET CUDA::cudart AND TARGET CUDA::cublasLt)
      try_compile(TILEFOLD_CUDA_LINKS ${CMAKE_BINARY_DIR}/CMakeFiles/cuda_probe ${probe}
                  LINK_LIBRARIES CUDA::cudart CUDA::cublasLt
                  CUDA_STANDARD 17 OUTPUT_VARIABLE probe_output)
    endif()
    if(TILEFOLD_CUDA_LINKS)
      set(TILEFOLD_WITH_CUDA TRUE)
    else()
      set(absence "${CMAKE_CUDA_COMPILER} works, but a program with the CUDA runtime and cuBLASLt does not link")
    endif()
  endif()
endif()

if(TILEFOLD_WITH_CUDA)
  message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${TILEFOLD_CUDA_ARCHITECTURES}")
elseif(TILEFOLD_CUDA STREQUAL "ON")
  message(FATAL_ERROR "TILEFOLD_CUDA=ON, but ${absence}\n${probe_output}")
else()
  message(STATUS "CPU-only build: ${absence}")
endif()
