//! `aviary`: the one command of users and operators.

#![forbid(unsafe_code)]

mod apis;
mod config;
mod daemons;
mod devices;
mod doctor;
mod dropin;
mod fpga;
mod fpga_move;
mod guest;
mod library;
mod manual;
mod operate;
mod policy;
mod run;
mod spec;
mod vm;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Use an accelerator that this process, container or machine does not own.
///
/// Aviary puts a generated library with the vendor's own name in front of a
/// program; every call crosses into an isolated API server that holds the device.
#[derive(Parser)]
#[command(name = "aviary", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::options::RunCommand),
    Serve(daemons::serve::ServeCommand),
    Ps(operate::ps::PsCommand),
    Top(operate::top::TopCommand),
    Metrics(operate::metrics::MetricsCommand),
    Tenant(operate::tenant::TenantCommand),
    Grant(operate::tenant::grant::GrantCommand),
    Revoke(operate::tenant::grant::RevokeCommand),
    Reload(operate::tenant::ReloadCommand),
    End(operate::end::EndCommand),
    Migrate(operate::migrate::MigrateCommand),
    Park(operate::park::ParkCommand),
    Unpark(operate::park::UnparkCommand),
    Swap(operate::park::SwapCommand),
    Upgrade(operate::upgrade::UpgradeCommand),
    Spec(spec::SpecCommand),
    Policy(policy::PolicyCommand),
    Vm(vm::VmCommand),
    Fpga(fpga::FpgaCommand),
    #[command(name = "fpga-device")]
    FpgaDevice(daemons::fpga_device::FpgaDeviceCommand),
    #[command(name = "fpga-worker", hide = true)]
    FpgaWorker(daemons::fpga_device::FpgaWorkerCommand),
    Guest(guest::GuestCommand),
    Devices(devices::DevicesCommand),
    Doctor(doctor::DoctorCommand),
    Tls(daemons::remote::TlsCommand),
    Completions(manual::CompletionsCommand),
    Man(manual::ManCommand),
    #[command(name = "run-node", hide = true)]
    RunNode(run::node::RunNodeCommand),
    #[command(name = "grant-relay", hide = true)]
    GrantRelay(daemons::grant_relay::GrantRelayCommand),
    #[command(hide = true)]
    Dial(daemons::grant_relay::DialCommand),
    #[command(name = "list-devices", hide = true)]
    ListDevices(devices::ListDevicesCommand),
    #[command(name = "list-holders", hide = true)]
    ListHolders(devices::ListDevicesCommand),
    #[command(name = "list-contexts", hide = true)]
    ListContexts(devices::ListDevicesCommand),
    #[command(hide = true)]
    Gateway(daemons::remote::GatewayCommandLine),
    #[command(name = "api-server", hide = true)]
    ApiServer(daemons::api_server::ApiServerCommand),
    #[command(name = "vm-device", hide = true)]
    VmDevice(daemons::vm_device::VmDeviceCommand),
    #[command(name = "fpga-card", hide = true)]
    FpgaCard(daemons::fpga_card::FpgaCardCommand),
}

/// The exit status that shells give to a program that SIGPIPE ended.
const CLOSED_PIPE: i32 = 128 + 13;

/// Has a command whose reader has gone (`aviary ps | head`) end as other commands do, without a word. The standard library ignores
/// SIGPIPE and panics when it cannot print.
fn end_with_closed_pipes() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if text.starts_with("failed printing to stdout") && text.contains("Broken pipe") {
            std::process::exit(CLOSED_PIPE);
        }
        usual(panic);
    }));
}

impl Command {
    /// These processes serve others, whatever becomes of what they print.
    fn is_daemon(&self) -> bool {
        use Command::{ApiServer, Dial, FpgaCard, FpgaDevice, Gateway, GrantRelay, RunNode, Serve, Vm, VmDevice};
        matches!(
            self,
            Dial(_)
                | GrantRelay(_)
                | Serve(_)
                | Vm(_)
                | RunNode(_)
                | Gateway(_)
                | ApiServer(_)
                | VmDevice(_)
                | FpgaCard(_)
                | FpgaDevice(_)
        )
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !arguments.command.is_daemon() {
        end_with_closed_pipes();
    }
    let result = match arguments.command {
        Command::Run(command) => run::run(command),
        Command::Serve(command) => daemons::serve::run(command),
        Command::Ps(command) => operate::ps::run(command),
        Command::Top(command) => operate::top::top(&command),
        Command::Metrics(command) => operate::metrics::metrics(&command),
        Command::Tenant(command) => operate::tenant::run(command),
        Command::Grant(command) => operate::tenant::grant::grant(command),
        Command::Revoke(command) => operate::tenant::grant::revoke(&command),
        Command::Reload(command) => operate::tenant::reload(&command),
        Command::End(command) => operate::end::run(command),
        Command::Migrate(command) => operate::migrate::run(&command),
        Command::Park(command) => operate::park::park(&command),
        Command::Unpark(command) => operate::park::unpark(&command),
        Command::Swap(command) => operate::park::swap(&command),
        Command::Upgrade(command) => operate::upgrade::run(&command),
        Command::Spec(command) => spec::run(command),
        Command::Policy(command) => policy::run(command),
        Command::Vm(command) => vm::run(command),
        Command::Fpga(command) => fpga::run(command),
        Command::FpgaDevice(command) => daemons::fpga_device::run(command),
        Command::FpgaWorker(_) => daemons::fpga_device::run_worker(),
        Command::Guest(command) => guest::run(&command),
        Command::Devices(command) => devices::run(&command),
        Command::ListDevices(command) => devices::list_one(&command),
        Command::ListHolders(command) => devices::holders::list_one(&command),
        Command::ListContexts(command) => devices::contexts::list_one(&command),
        Command::Doctor(command) => doctor::run(command),
        Command::Tls(command) => daemons::remote::tls(command),
        Command::Completions(command) => manual::completions::<Arguments>(&command),
        Command::Man(command) => manual::man::<Arguments>(&command),
        Command::RunNode(command) => run::node::run(&command),
        Command::GrantRelay(command) => daemons::grant_relay::run(&command),
        Command::Dial(command) => daemons::grant_relay::run_dialer(&command),
        Command::Gateway(command) => daemons::remote::gateway(command),
        Command::ApiServer(command) => daemons::api_server::run(&command),
        Command::VmDevice(command) => daemons::vm_device::run(command),
        Command::FpgaCard(command) => daemons::fpga_card::run(command),
    };
    result.unwrap_or_else(|error| {
        eprintln!("aviary: {}", explained(&error));
        ExitCode::from(1)
    })
}

/// The error and its causes. Many errors contain the text of their cause already; it is printed once.
fn explained(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match text.as_str() {
            "" => text = cause,
            all if all.ends_with(&cause) => {}
            _ => text = format!("{text}: {cause}"),
        }
    }
    text
}
