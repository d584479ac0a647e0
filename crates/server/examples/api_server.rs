//! An API server process and nothing else: `api_server CONTROL-FD`.

fn main() {
    let control = std::env::args().nth(1).and_then(|fd| fd.parse().ok());
    std::process::exit(control.map_or(2, aviary_server::process::main));
}
