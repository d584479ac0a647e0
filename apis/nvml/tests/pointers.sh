# For tests/pointers: where the headers are, and a folder with the vendor's library, whose name is printed last.
headers=(-I"$root/target/cache/nvml-headers")
vendor() {
    local tests=$root/apis/nvml/tests
    mkdir -p "$1" && python3 "$tests/functions.py" "$root/target/cache/nvml-headers/nvml.h" "$tests/vendor.c" reference "$1/reference.c" &&
        gcc -std=gnu11 "${headers[@]}" -I"$tests" -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o "$1/libnvidia-ml.so.1" \
            "$tests/vendor.c" "$1/reference.c" && echo "$1"
}
