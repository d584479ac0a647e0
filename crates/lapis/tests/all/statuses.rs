//! Objects that calls fill with how they ended, and what is told of new objects.

use crate::folder::Folder;
use aviary_lapis::{generate, lower};

const HEADER: &[u8] = b"typedef struct out out; typedef struct rep *rep; out *make(void); void end(out *outcome);\n\
    long work(int a, out *outcome); rep give(out *outcome); rep other(void); void left(out *outcome);\n";

const TYPE: &str =
    "type(out *) { handle; status_text(code, text, told); failure(5); lost(6); } status_argument(outcome);";

const CODE: &str = "#support <stdint.h>\n\
    utility(server) { int64_t code(out *o) { return 0; } const char *text(out *o) { return 0; } int short_code(out *o) { return 0; } }\n\
    utility(guest) { void told(out *o, int64_t c, const char *t) { } void told_less(out *o, int64_t c) { } }\n\
    make(void) { return_value { allocate; } } end(out *ended) { argument(ended) { deallocate; } }\n\
    work(int a, out *outcome) { }\n";

fn folder(name: &str, ty: &str, more: &str) -> Folder {
    Folder::new(&format!("statuses-{name}"), HEADER, &format!("{CODE}{ty}{more}"))
}

#[test]
fn mistakes_in_status_arguments_are_told() {
    let cases = [
        (TYPE.replace("code, text", "text, text"), "", "has other parameters, or another result"),
        (TYPE.replace("code, text", "short_code, text"), "", "has other parameters, or another result"),
        (TYPE.replace("code, text", "code, code"), "", "has other parameters, or another result"),
        (TYPE.replace("(code", "(told"), "", "is not in the API server"),
        (TYPE.replace("told)", "told_less)"), "", "`status_text` tells a function of the guest"),
        (TYPE.replace("told)", "code)"), "", "`status_text` tells a function of the guest"),
        (TYPE.replace("told)", "nothing)"), "", "`status_text` tells a function of the guest"),
        (TYPE.replace("lost(6);", ""), "", "a status type without `lost`"),
        (TYPE.replace("failure(5)", "failure(0)"), "", "`failure` is the value of success"),
        (TYPE.replace("lost(6)", "lost(NULL)"), "", "the code of a status is a constant"),
        (
            TYPE.replace("status_text(code, text, told); failure(5); lost(6);", ""),
            "",
            "what does a call that is refused write into",
        ),
        (TYPE.to_string(), "left(out *outcome) { async; }", "is asynchronous but reports by a `out*`"),
        (TYPE.to_string(), "left(out *outcome) { failure(0); }", "`failure` is the value of success"),
        (
            TYPE.to_string(),
            "left(out *outcome) { status_text(code, text, told); }",
            "`status_text` cannot describe a function",
        ),
    ];
    for (n, (ty, more, expected)) in cases.into_iter().enumerate() {
        let told = folder(&n.to_string(), &ty, more).load().expect_err(more).to_string();
        assert!(told.contains(expected), "{ty} {more}: {told}");
    }
}

#[test]
fn each_call_that_names_the_object_tells_of_it() {
    let more = "give(out *outcome) { return_value { allocate; } }";
    let loaded = folder("told", TYPE, more).load().expect("no mistakes");
    let sources = generate::generate(&loaded.model, &lower::lower(&loaded.model), 0);
    let plain = |text: &str| text.split_whitespace().collect::<String>();
    let count = |text: &str, part: &str| plain(text).matches(&plain(part)).count();
    // `work` and `give`; `end` has the object under another name.
    assert_eq!(count(&sources.server, "call.reply_word(code as u64);"), 2, "{}", sources.server);
    assert_eq!(count(&sources.server, "let ok: bool = code == 0 && ret != 0;"), 1, "{}", sources.server);
    assert_eq!(count(&sources.guest, "let code = reply.word() as i64 as i128;"), 2, "{}", sources.guest);
    // Those, `left`, which nothing describes, and what they tell of calls that failed before.
    assert!(count(&sources.guest, "let text: *const std::ffi::c_char = std::ptr::null();") >= 3, "{}", sources.guest);
}

const TOLD: &str = "struct facts { long number; }; struct place { char *text; };\n\
    utility(server) { void fill(rep r, struct facts *to) { } void fill_other(rep r, struct place *to) { }\n\
      int answer(rep r, struct facts *to) { return 0; } void read_only(rep r, const struct facts *to) { } }\n\
    utility(guest) { void guests(rep r, struct facts *to) { } }\n\
    other(void) { return_value { allocate; tells(fill); } } left(out *o) { } give(out *o) { return_value { allocate; } }\n\
    type(rep) { handle; metadata(struct facts); } type(out *) { handle; }\n";

fn told(name: &str, from: &str, to: &str) -> Folder {
    assert!(TOLD.contains(from));
    Folder::new(&format!("told-{name}"), HEADER, &TOLD.replace(from, to))
}

#[test]
fn mistakes_in_what_is_told_of_objects_are_told() {
    let cases = [
        ("tells(fill)", "tells(fill_other)", "`tells` needs a function of the server"),
        ("tells(fill)", "tells(answer)", "`tells` needs a function of the server"),
        ("tells(fill)", "tells(read_only)", "`tells` needs a function of the server"),
        ("tells(fill)", "tells(guests)", "`tells` needs a function of the server"),
        ("tells(fill)", "tells(nothing)", "`tells` needs a function of the server"),
        ("allocate; tells", "tells", "an object is told of where it is made"),
        ("metadata(struct facts);", "", "the guest has no place for what is told"),
        ("metadata(struct facts)", "metadata(struct place)", "has a pointer in `text`"),
    ];
    for (n, (from, to, expected)) in cases.into_iter().enumerate() {
        let message = told(&n.to_string(), from, to).load().expect_err(to).to_string();
        assert!(message.contains(expected), "{to}: {message}");
    }
}

#[test]
fn a_call_that_makes_an_object_tells_of_it_where_it_says_so() {
    let loaded = told("all", "tells", "tells").load().expect("no mistakes");
    let sources = generate::generate(&loaded.model, &lower::lower(&loaded.model), 0);
    let plain = |text: &str| text.split_whitespace().collect::<String>();
    let count = |text: &str, part: &str| plain(text).matches(&plain(part)).count();
    assert_eq!(count(&sources.server, "call.reply_told(metadata, 8"), 1, "{}", sources.server);
    assert_eq!(count(&sources.guest, "reply.told(value,"), 1, "{}", sources.guest);
}
