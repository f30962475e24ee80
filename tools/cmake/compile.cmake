# How everything is compiled: compiler cache, number of jobs, sanitizers.

if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(TILEFOLD_CCACHE ccache)
  if(TILEFOLD_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${TILEFOLD_CCACHE})
  endif()
endif()

# No -march anywhere: the binaries run on any machine of their architecture, and the CPU room picks
# the instruction set when it runs.

# As many compilers as memory carries: 1.5 GiB each is the largest seen (templates, per-instruction-
# set copies), nvcc takes up to 4 GiB. Ninja keeps to the pools; other generators do not know them.
cmake_host_system_information(RESULT memory_mib QUERY AVAILABLE_PHYSICAL_MEMORY)
math(EXPR cxx_jobs "${memory_mib} / 1536")
math(EXPR cuda_jobs "${memory_mib} / 4096")
foreach(pool cxx_jobs cuda_jobs)
  if(${pool} LESS 1)
    set(${pool} 1)
  endif()
endforeach()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS cxx=${cxx_jobs} cuda=${cuda_jobs})
set(CMAKE_JOB_POOL_COMPILE cxx)

option(TILEFOLD_SANITIZE "AddressSanitizer and UndefinedBehaviorSanitizer" OFF)
if(TILEFOLD_SANITIZE)
  set(flags -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
  add_link_options(${flags})
endif()
