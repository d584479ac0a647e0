# For tests/pointers: where the headers are, and a folder with the vendor's library, whose name is printed last.
headers=(-I"$root/target/cache/cuda-headers")
vendor() { "$root/apis/cuda/tests/fetch-runtime" >&2 && CUDA_INCLUDE=$root/target/cache/cuda-runtime/include "$root/apis/cuda/refdriver/build" "$1" && echo "$1"; }
