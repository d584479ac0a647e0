//! What `aviary serve --help` says of the configuration file. Packages install it, each line commented out, as /etc/aviary/node.toml.

/// A title, then a file with every key, an empty line, and more.
pub const CONFIG_HELP: &str = r##"Configuration file (TOML, every key is optional; [...] is the default):
  listen = "unix:/run/aviary/node.sock"
  mode = "660"
  spares = 2
  sessions_per_user = 64
  attach_rate = 20              # processes of one user or VM that may attach per second; 0: no limit [5 for each CPU]
  log_level = "info"
  api_server_users = "200000-265535"    # user ids for API servers, if the node is root; or "none"
  api_dirs = ["/opt/aviary/apis"]
  pass_environment = ["ACME_*"] # environment variables that API servers get, besides those that vendors' libraries use
  unknown_users = "share"       # users with neither an entry in [tenants] nor one in the machine's user database, such as
                                # subordinate ids: "share": all are one tenant, others; "refuse"; "separate": one each [share]
  most_tenants = 1024           # tenants without an entry in [tenants] that the node knows at a time [1024]
  movable = false               # turn off moving and parking, and the recording that they need [true]
  parked_memory = "16G"         # host memory for the states of parked sessions [a quarter of the machine's]
  idle_park = "10m"             # park sessions that make no call for this time; "0s": never [0s]
  home = "512M"                 # what a tenant's home and /dev/shm may hold together, on a node of root [1G]
  network_grace = "2m"          # time that sessions of other machines survive without a connection; "0s": none [2m]
  grants = "/srv/aviary/grants" # folder of the tenants that `aviary grant` makes [/var/lib/aviary/grants, for a node of root on
                                # the usual socket; other nodes: none]
  only_devices = ["NVIDIA H100*"]   # devices that tenants may use, by the names that the vendors' libraries report [all]
  [limits]                      # of each tenant, by the resources that the API's specification declares
  device_memory = "2G"
  [tenants.research]            # users and certificates that are limited and charged together
  users = [1000, 1001]
  certificates = ["lab-7"]      # names in certificates or tokens, besides the tenant's own name
  limits = { device_memory = "8G" }   # for all its sessions together
  devices."NVIDIA H100*" = { limits = { device_memory = "2G" } }   # on each device of this name
  sessions = 32                 # the most sessions at a time
  threads = 64                  # the most threads of a session that make calls
  apis = ["opencl"]             # refuse all other APIs
  functions = { deny = ["clCreatePipe"] }   # or allow = [...]: refuse all other functions
  privileged = ["nvmlDeviceSetPersistenceMode"]    # functions that it may call although they change a device for all users [none]
  only_devices = ["NVIDIA H100*", "pocl*"]  # instead of the node's list
  weight = 2                    # share of a scheduled device, relative to other tenants [1]
  priority = 0
  idle_park = "1h"              # instead of the node's value; "0s": never
  home = "4G"                   # instead of the node's value
  resident_guarantee = "8G"     # memory of each shared device that its sessions keep while others have more than theirs [0]
  cap = "30%"                   # the largest share of a scheduled device's time, even if the device is idle
  vendor = "cuda12"             # the vendor set that its new sessions use [the node's own libraries]
  [vendors.cuda12]              # a version of vendors' software that tenants can have (docs/tenants.md)
  libraries = { cuda = "/opt/cuda12/libcuda.so.1" }    # by API, the file of the vendor's library [as the node finds it]
  environment = { CUDA_CACHE_MAXSIZE = "0" }   # variables of its API servers, instead of the node's own
  read = ["/opt/cuda12/data"]   # files that its API servers can read, besides those of [sandbox]; those of other sets cannot
  [devices."NVIDIA H100*"]
  limits = { device_memory = "1G" }   # of each tenant that has no limit of its own on this device
  [devices."*"]                 # schedule these devices; without this section calls of different tenants are not ordered
  scheduler = "fair"            # or wfq-poll, wfq-aimd, round-robin, slices, priority, none
  slice = "6ms"
  linger = "200us"
  hold_limit = "10s"            # end a session that keeps the device this long after its slice while others wait; "0s": never
  latency = "1ms"               # priority, ebpf: the most work in flight of a tenant that another can preempt; "0s": a slice
  kind = "exclusive"            # the device executes one tenant's work at a time; "preemptive": it time-slices between tenants [as its API says]
  awake = "300us"               # how long interactive programs spin while they have the device [300us; 0us with fewer than 8 CPUs]
  policy = "policies/token_bucket.c"   # for the scheduler "ebpf" [that of the API's specification]
  memory = "24G"                # share out this much of the device's memory; sessions that find no room wait or swap [not shared]
  oversubscribe = 2.0           # sessions may have so many times as much; what is not on the device is in host memory [1.0]
  beside = "4G"                 # with memory: what an API server may have there besides what its sessions allocate [4G]
  context = "600M"              # device_memory that each CUDA context is charged with; "0": none [measured when the node starts]
  [sandbox]                     # of API servers (docs/security.md)
  mode = "auto"                 # "on"; "off": only user ids confine API servers; "log": refuse nothing, log what "on" would
                                # refuse; "auto": "on" if this machine supports it and all APIs declare what they need [auto]
  read = ["/opt/vendor"]        # files that they can read, besides the usual libraries
  devices = ["/dev/xdma0*"]     # device nodes that they can use, besides those of known accelerators
  system_calls = ["mincore"]    # system calls that they can make, besides the usual ones
  ioctls = ["F", "0x30000001", "1-80"]   # ioctl requests: all of a type, one number, or a range of numbers
  share = ["ipc"]               # namespaces shared with the node, for drivers that need it: pid, net, ipc, uts, cgroup
  [cgroup]                      # control groups: one for each tenant, in it one for each API server
  mode = "auto"                 # "on"; "off"; "auto": on if a cgroup v2 directory is delegated to the node [auto]
  path = "/sys/fs/cgroup/aviary"    # a delegated directory [the node's own]
  memory = "16G"                # host memory of each tenant's API servers together [no limit]
  processes = 4096              # the most processes and threads of each tenant's API servers together [16384]
  cpu_weight = 100              # share of CPU time while CPUs are busy, 1 to 10000 [100]
  session = { memory = "8G", processes = 1024 }    # for the API server of each guest process [no limit]
  tenants.research = { memory = "64G" }            # for tenants that differ
  [vms.build]                   # a virtual machine may attach (docs/virtual-machines.md)
  socket = "/run/aviary/build.sock"    # the socket to which its VMM connects
  tenant = "research"           # the tenant of all its processes [the VM's name]
  mode = "600"                  # who may connect
  [vms.build.fpga.loopback]     # an accelerator of a card as a PCI function of the VM (docs/fpga.md)
  card = "card0"                # the card's name in [fpga]
  type = "d8424dc4-a4a3-c413-f89e-433683f9040b"    # the accelerator's, a GUID
  socket = "/run/aviary/build-loopback.sock"    # the socket to which the VMM connects by vfio-user
  mode = "600"                  # who may connect [the VM's mode]
  [fpga.card0]                  # a simulated FPGA card (docs/fpga.md)
  image = "all"                 # the name of an image built by fpga/build, or a file
  socket = "/run/aviary/card0.sock"    # the socket to which programs connect [fpga-card0.sock in the folder of the node's socket]
  mode = "666"                  # who may connect [the node's mode]

SIGHUP and `aviary reload` read the file again. These take effect at once: sessions_per_user, attach_rate, only_devices, home, unknown_users,
most_tenants, [limits], [tenants], [vendors] (for new sessions), [vms], [fpga], [devices] (unless --scheduler or --slice is given) and policy files."##;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FileConfig;

    fn example() -> &'static str {
        let (_, rest) = CONFIG_HELP.split_once('\n').unwrap();
        rest.split_once("\n\n").unwrap().0
    }

    /// The names that the parser knows in the table of that header, of its message about one that it does not know.
    fn known(header: &str) -> Vec<String> {
        let wrong = toml::from_str::<FileConfig>(&format!("{header}\nno_such_key = 1\n")).unwrap_err();
        let list = wrong.message().split_once("expected ").expect("a list of keys").1;
        list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn example_is_a_file_that_a_node_accepts() {
        toml::from_str::<FileConfig>(example()).unwrap();
    }

    #[test]
    fn example_has_every_key() {
        let all: toml::Table = toml::from_str(example()).unwrap();
        let first = |table: &toml::Value| table.as_table().unwrap().values().next().unwrap().clone();
        let devices = all["devices"].as_table().unwrap().values();
        let device = devices.flat_map(|entry| entry.as_table().unwrap().clone()).collect::<toml::Table>();
        let tables = [
            ("", all.clone()),
            ("[tenants.a]", first(&all["tenants"]).as_table().unwrap().clone()),
            ("[devices.a]", device),
            ("[vendors.a]", first(&all["vendors"]).as_table().unwrap().clone()),
            ("[vms.a]", first(&all["vms"]).as_table().unwrap().clone()),
            ("[vms.a.fpga.b]", first(&first(&all["vms"])["fpga"]).as_table().unwrap().clone()),
            ("[fpga.a]", first(&all["fpga"]).as_table().unwrap().clone()),
            ("[sandbox]", all["sandbox"].as_table().unwrap().clone()),
            ("[cgroup]", all["cgroup"].as_table().unwrap().clone()),
        ];
        for (header, table) in tables {
            let keys = known(header);
            assert!(keys.len() > 2, "{header}: {keys:?}");
            let missing: Vec<_> = keys.iter().filter(|key| !table.contains_key(*key)).collect();
            assert!(missing.is_empty(), "{header}: {missing:?} are in no example");
        }
    }
}
