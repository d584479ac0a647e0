# For tests/pointers: where the headers are, and a folder with the vendor's library, whose name is printed last.
headers=(-I"$root/target/cache/nvml-headers")
vendor() {
    mkdir -p "$1" && gcc -std=gnu11 "${headers[@]}" -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o "$1/libnvidia-ml.so.1" \
        "$root/apis/nvml/tests/vendor.c" && echo "$1"
}
