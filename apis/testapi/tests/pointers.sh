# For tests/pointers: where the headers are, and a folder with the vendor's library, whose name is printed last.
headers=(-I"$root/apis/testapi/include")
vendor() { "$root/apis/testapi/build" "$1"; }
