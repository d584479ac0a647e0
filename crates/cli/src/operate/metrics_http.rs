//! The HTTP of `aviary metrics --listen`: answers `GET /metrics` and nothing else. Strangers may be at the other end.

use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Connections at a time; more are closed. Bounds the threads that strangers can make this process start.
const MAX_CONNECTIONS: usize = 16;
/// The time for a whole request, and for each write of its answer: a client that is slower is left.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a request with its headers.
const MAX_REQUEST: usize = 8192;
/// Headers of a request.
const MAX_HEADERS: usize = 64;

/// Answers requests with what `text` says at the time of each.
pub fn serve(listener: &TcpListener, text: &(dyn Fn() -> anyhow::Result<String> + Sync)) -> anyhow::Result<ExitCode> {
    let open = AtomicUsize::new(0);
    thread::scope(|scope| {
        loop {
            let (stream, _) = match listener.accept() {
                Ok(accepted) => accepted,
                // The client has gone, or descriptors are short: neither ends the service.
                Err(_) => {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            if open.fetch_add(1, Ordering::SeqCst) >= MAX_CONNECTIONS {
                open.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let open = &open;
            scope.spawn(move || {
                // A client that does not listen to the end misses its answer.
                let _ = answer(stream, text);
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    })
}

fn answer(mut stream: TcpStream, text: &dyn Fn() -> anyhow::Result<String>) -> std::io::Result<()> {
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let request = read_request(&mut stream)?;
    let (status, body) = match request.as_deref().map(parse) {
        Some(Ok(())) => match text() {
            Ok(text) => ("200 OK", text),
            Err(error) => ("503 Service Unavailable", format!("{error:#}\n")),
        },
        Some(Err(status)) => (status, format!("{status}\n")),
        None => ("431 Request Header Fields Too Large", String::new()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// The request up to the end of its headers; `None`: that is too far.
fn read_request(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let (mut request, deadline) = (Vec::new(), Instant::now() + REQUEST_TIMEOUT);
    let mut piece = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > MAX_REQUEST {
            return Ok(None);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        // No time at all would mean no limit.
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut piece)? {
            _ if left.is_zero() => return Err(std::io::ErrorKind::TimedOut.into()),
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    Ok(Some(request))
}

/// An error: the status.
fn parse(request: &[u8]) -> Result<(), &'static str> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Err("431 Request Header Fields Too Large"),
        Ok(httparse::Status::Partial) | Err(_) => return Err("400 Bad Request"),
    }
    if parsed.method != Some("GET") {
        return Err("405 Method Not Allowed");
    }
    let path = parsed.path.and_then(|target| target.split('?').next());
    if path == Some("/metrics") { Ok(()) } else { Err("404 Not Found") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_by_http() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // The service ends with the process, as `aviary metrics --listen`.
        thread::spawn(move || serve(&listener, &|| Ok("a 1\n".to_owned())));
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        let good = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\na 1\n"), "{good}");
        assert!(good.contains("Content-Length: 4\r\n") && good.contains("text/plain; version=0.0.4"), "{good}");
        assert!(ask("GET /metrics?name[]=a HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200"));
        assert!(ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask("\r\n\r\n").starts_with("HTTP/1.1 400"));
        let idle: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(ask("GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"), "others keep it from none");
        drop(idle);
    }

    #[test]
    fn long_requests_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[b'x'; MAX_REQUEST + 1024]).unwrap();
        assert!(read_request(&mut server).unwrap().is_none());
    }
}
