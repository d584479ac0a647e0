//! `aviary`: the one command of users and operators.

#![forbid(unsafe_code)]

mod amount;
mod api_server;
mod apis;
mod bypass;
mod card_config;
mod cgroup;
mod config;
mod doctor;
mod dropin;
mod end;
mod fpga;
mod fpga_card;
mod fpga_move;
mod guest;
mod launch;
mod library;
mod manual;
mod metrics;
mod metrics_http;
mod migrate;
mod park;
mod policy;
mod ps;
mod remote;
mod run;
mod sandbox;
mod serve;
mod signals;
mod spec;
mod tenant;
mod terminal;
mod top;
mod upgrade;
mod vm;
mod vm_device;
mod which_node;

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
    Run(run::RunCommand),
    Serve(serve::ServeCommand),
    Ps(ps::PsCommand),
    Top(top::TopCommand),
    Metrics(metrics::MetricsCommand),
    Tenant(tenant::TenantCommand),
    Reload(tenant::ReloadCommand),
    End(end::EndCommand),
    Migrate(migrate::MigrateCommand),
    Park(park::ParkCommand),
    Unpark(park::UnparkCommand),
    Upgrade(upgrade::UpgradeCommand),
    Spec(spec::SpecCommand),
    Policy(policy::PolicyCommand),
    Vm(vm::VmCommand),
    Fpga(fpga::FpgaCommand),
    Guest(guest::GuestCommand),
    Doctor(doctor::DoctorCommand),
    Tls(remote::TlsCommand),
    Completions(manual::CompletionsCommand),
    Man(manual::ManCommand),
    #[command(hide = true)]
    Gateway(remote::GatewayCommandLine),
    #[command(name = "api-server", hide = true)]
    ApiServer(api_server::ApiServerCommand),
    #[command(name = "vm-device", hide = true)]
    VmDevice(vm_device::VmDeviceCommand),
    #[command(name = "fpga-card", hide = true)]
    FpgaCard(fpga_card::FpgaCardCommand),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(command) => run::run(command),
        Command::Serve(command) => serve::run(command),
        Command::Ps(command) => ps::run(command),
        Command::Top(command) => top::top(&command),
        Command::Metrics(command) => metrics::metrics(&command),
        Command::Tenant(command) => tenant::run(command),
        Command::Reload(command) => tenant::reload(&command),
        Command::End(command) => end::run(command),
        Command::Migrate(command) => migrate::run(&command),
        Command::Park(command) => park::park(&command),
        Command::Unpark(command) => park::unpark(&command),
        Command::Upgrade(command) => upgrade::run(&command),
        Command::Spec(command) => spec::run(command),
        Command::Policy(command) => policy::run(command),
        Command::Vm(command) => vm::run(command),
        Command::Fpga(command) => fpga::run(command),
        Command::Guest(command) => guest::run(&command),
        Command::Doctor(command) => doctor::run(command),
        Command::Tls(command) => remote::tls(command),
        Command::Completions(command) => manual::completions::<Arguments>(&command),
        Command::Man(command) => manual::man::<Arguments>(&command),
        Command::Gateway(command) => remote::gateway(command),
        Command::ApiServer(command) => api_server::run(&command),
        Command::VmDevice(command) => vm_device::run(command),
        Command::FpgaCard(command) => fpga_card::run(command),
    };
    result.unwrap_or_else(|error| {
        eprintln!("aviary: {error:#}");
        ExitCode::from(1)
    })
}
