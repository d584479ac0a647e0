//! A VM without a VM: a driver with hand-made queues in sealed memory, and a node that plays every API server.
#![allow(dead_code)]

pub mod driver;
pub mod node;
pub mod ring;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use aviary_vm::{DeviceError, DeviceOptions, serve};
use driver::Driver;
use node::FakeNode;

/// A folder that is removed with its content.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let name = format!("aviary-vm-test-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A device on a thread, the driver of its VM, and its node.
pub struct Machine {
    pub driver: Driver,
    pub node: FakeNode,
    device: Option<JoinHandle<Result<(), DeviceError>>>,
    _folder: Folder,
}

impl Machine {
    pub fn new() -> Self {
        let mut machine = Self::powered_off();
        machine.driver.start();
        machine
    }

    /// Opens a session that has greeted its API server.
    pub fn greeted(&mut self, number: u32) -> node::Server {
        self.driver.open(number, 77, "program").unwrap();
        let mut server = self.node.accept();
        self.driver.send(number, &node::hello()).unwrap();
        server.greeting();
        server.send(&node::welcome());
        server
    }

    /// A machine whose VMM has connected and done nothing else.
    pub fn powered_off() -> Self {
        let folder = Folder::new();
        let (node, vmm) = (folder.path().join("node.sock"), folder.path().join("vm.sock"));
        let listener = UnixListener::bind(&vmm).unwrap();
        let fake = FakeNode::new(&node);
        let driver = Driver::connect(&vmm);
        let device = std::thread::spawn(move || serve(DeviceOptions { name: "test".into(), listener, node }));
        Machine { driver, node: fake, device: Some(device), _folder: folder }
    }

    /// Switches the VM off; returns the device's result.
    pub fn power_off(mut self) -> Result<(), DeviceError> {
        self.driver.hang_up();
        self.device.take().expect("a device").join().expect("the device panicked")
    }
}
