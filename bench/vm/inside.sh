# In the VM: runs what the host's side asks for, line by line, and says how it ended.
ulimit -l unlimited
echo "= ready"
while read -r line; do
    eval "$line" 2>&1
    echo "= $?"
done
