//! Specifications made of several files, and what is said when C text is wrong.

use aviary_lapis::model::{Callee, ExprKind, Side, Support};
use aviary_lapis::{Loaded, Options, load};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder with a specification, gone when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Folder {
        let folder = Folder(std::env::temp_dir().join(format!("aviary-lapis-files-{name}-{}", std::process::id())));
        fs::create_dir_all(&folder.0).expect("a folder");
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/small.h"), folder.0.join("small.h"))
            .expect("the header");
        for (file, text) in files {
            fs::create_dir_all(folder.0.join(file).parent().expect("a parent")).expect("a folder");
            fs::write(folder.0.join(file), text).expect("written");
        }
        folder
    }

    fn load(&self) -> Result<Loaded, String> {
        self.load_with(&Options::default())
    }

    fn load_with(&self, options: &Options) -> Result<Loaded, String> {
        let here = format!("{}/", self.0.display());
        load(&self.0.join("main.lapis"), options).map_err(|d| d.to_string().replace(&here, ""))
    }

    fn loaded(&self) -> Loaded {
        self.load().unwrap_or_else(|e| panic!("{e}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn support<'a>(loaded: &'a Loaded, name: &str) -> &'a Support {
    &loaded.model.functions.iter().find(|f| f.name == name).expect("a function").support
}

#[test]
fn imported_files_are_part_of_the_specification() {
    let base = "#include \"../small.h\"\ntype(sm_status) { success(SM_OK); }\nsm_close(sm_device device) { }\nsm_destroy(sm_buffer b) { unsupported; }";
    let folder = Folder::new(
        "import",
        &[
            ("parts/base.lapis", base),
            // Importing twice, and in a circle, is importing once.
            ("parts/more.lapis", "import \"base.lapis\"; import \"../main.lapis\"; sm_undescribed(void) { }"),
            (
                "main.lapis",
                "import \"parts/base.lapis\"; import \"parts/more.lapis\"; override sm_destroy(sm_buffer b) { }",
            ),
        ],
    );
    let loaded = folder.loaded();
    assert_eq!(*support(&loaded, "sm_close"), Support::Remote);
    assert_eq!(*support(&loaded, "sm_destroy"), Support::Remote);
    assert_eq!(*support(&loaded, "sm_undescribed"), Support::Remote);
    assert!(loaded.model.error.is_some());
}

#[test]
fn a_second_description_needs_override() {
    let folder = Folder::new(
        "twice",
        &[(
            "main.lapis",
            "#include \"small.h\"\nsm_close(sm_device a) { }\nsm_close(sm_device b) { }\noverride sm_destroy(sm_buffer b) { }",
        )],
    );
    let message = folder.load().expect_err("a mistake");
    assert!(message.contains("error: `sm_close` is described twice\n --> main.lapis:3:1"), "{message}");
    assert!(message.contains("`override` before a description"), "{message}");
    assert!(message.contains("nothing to override: `sm_destroy`"), "{message}");
}

#[test]
fn missing_files_are_named_where_they_are_mentioned() {
    let folder =
        Folder::new("missing", &[("main.lapis", "#include \"small.h\"\nimport \"gone.lapis\";\nutility \"gone.c\";")]);
    let message = folder.load().expect_err("a mistake");
    assert!(message.contains("main.lapis:2:8") && message.contains("main.lapis:3:9"), "{message}");
    let folder = Folder::new("header", &[("main.lapis", "// no header\n#include <gone.h>\n")]);
    let message = folder.load().expect_err("a mistake");
    assert!(message.contains("main.lapis:2:1") && message.contains("`-I DIR` adds a folder"), "{message}");
}

#[test]
fn mistakes_in_c_text_are_shown_where_they_are() {
    let main = "#include \"small.h\"\nutility(server) {\n  int fine(void) { return 1; }\n  int broken(void) { return undeclared_name; }\n}\nutility(guest) \"more.c\";";
    let folder =
        Folder::new("c", &[("main.lapis", main), ("more.c", "int good(void) { return 1; }\n\nint bad( { }\n")]);
    let message = folder.load().expect_err("a mistake");
    assert!(message.contains("main.lapis:4:3") && message.contains("undeclared_name"), "{message}");
    assert!(message.contains("more.c:3:1"), "{message}");
}

#[test]
fn utility_functions_belong_to_their_side() {
    let main = "#include \"small.h\"
struct shape { int known; };
declare_metadata(struct shape);
utility int both(int x) { return x; }
utility(guest) { #include \"aviary.h\"\n int here(sm_device d) { return ((struct shape *)metadata(struct shape, d))->known; } static int hidden(int x) { return x; } }
utility(server) { int there(sm_device d) { return aviary_function(\"x\") != 0; } }
sm_hint(sm_device device, int level) { after(here(device) + both(1)); after_server(there(device)); }
sm_close(sm_device device) { after(metadata(device)->known); }";
    let folder = Folder::new("sides", &[("main.lapis", main)]);
    let loaded = folder.loaded();
    let side = |name: &str| loaded.model.utility_functions.iter().find(|f| f.name == name).map(|f| f.side);
    assert_eq!((side("both"), side("here"), side("there")), (Some(Side::Both), Some(Side::Guest), Some(Side::Server)));
    let close = loaded.model.functions.iter().find(|f| f.name == "sm_close").expect("a function");
    let ExprKind::Field(metadata, 0) = &close.after[0].value.kind else { panic!("{:?}", close.after) };
    assert!(matches!(metadata.kind, ExprKind::Metadata(_)));
    let hint = loaded.model.functions.iter().find(|f| f.name == "sm_hint").expect("a function");
    assert!(matches!(&hint.after_server[0].value.kind, ExprKind::Call(Callee::Utility(_), _)));

    let wrong = main.replace("after(here(device) + both(1))", "require(here(device), 1); after(hidden(1))");
    let message = Folder::new("wrong", &[("main.lapis", &wrong)]).load().expect_err("a mistake");
    assert!(message.contains("`require` cannot use `here`"), "{message}");
    assert!(message.contains("`hidden` is static"), "{message}");
}

#[test]
fn an_umbrella_header_stands_for_its_siblings() {
    let folder = Folder::new(
        "umbrella",
        &[
            (
                "include/api/all.h",
                "#include <stdlib.h>\n#include <api/one.h>\n#include \"two.h\"\n#include \"../other.h\"\n",
            ),
            ("include/api/one.h", "int one(void);\n"),
            ("include/api/two.h", "int two(void);\n"),
            ("include/other.h", "int other(void);\n"),
            ("main.lapis", "#include <api/all.h>\none(void) { }"),
        ],
    );
    let options = Options { include_dirs: vec![folder.0.join("include")], ..Options::default() };
    let loaded = folder.load_with(&options).unwrap_or_else(|e| panic!("{e}"));
    let names: Vec<&str> = loaded.model.functions.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["one", "two"]);
}

#[test]
fn defines_reach_the_headers() {
    let folder = Folder::new(
        "defines",
        &[
            ("h.h", "#ifdef WIDE\nint f(long x);\n#else\nint f(int x);\n#endif\n#ifdef MORE\nint g(void);\n#endif\n"),
            ("main.lapis", "#define MORE 1\n#include \"h.h\"\nf(long x) { }"),
        ],
    );
    let options = Options { defines: vec!["WIDE".into()], ..Options::default() };
    let loaded = folder.load_with(&options).unwrap_or_else(|e| panic!("{e}"));
    assert!(loaded.warnings.is_empty());
    assert_eq!(loaded.model.functions.len(), 2);
    let narrow = folder.loaded();
    assert!(narrow.warnings[0].message.contains("differs from the header's"), "{:?}", narrow.warnings);
}

#[test]
fn tables_and_their_members() {
    let header = "struct ops { int (*f)(int a); int (*hidden)(void *p, int n); void *reserved; int number; };\nint f(int a);\nstruct ops *get(void);\n";
    let main = "#include \"h.h\"\ntable(struct ops) operations;\nf(int a) { }\nget(void) { return_value { table(operations); } }\noperations.hidden(void *p, int n) { address(0); argument(p) { in; buffer(n); } }";
    let folder = Folder::new("tables", &[("h.h", header), ("main.lapis", main)]);
    let loaded = folder.loaded();
    let table = &loaded.model.tables[0];
    assert_eq!(table.size, 32);
    let members: Vec<_> = table.members.iter().map(|m| (m.name.as_str(), m.offset, m.function)).collect();
    assert_eq!(members, [("f", 0, Some(0)), ("hidden", 8, Some(2)), ("reserved", 16, None)]);
    assert_eq!(loaded.model.functions[2].name, "operations.hidden");
    assert_eq!(loaded.model.functions[2].member_of, Some((0, "hidden".into())));

    let wrong =
        main.replace("operations.hidden", "operations.hiden").replace("table(operations);", "table(operation);");
    let message = Folder::new("no-table", &[("h.h", header), ("main.lapis", &wrong)]).load().expect_err("a mistake");
    assert!(message.contains("did you mean `hidden`?") && message.contains("did you mean `operations`?"), "{message}");
}

/// The build writes a library under the soname and files under their paths: none leads out of its folder.
#[test]
fn names_that_become_files_are_plain() {
    let sonames =
        ["/usr/lib/libn.so.1", "./libn.so.1", "a/b", "..", ".", "", "lib\\0n.so", "server.so", "gen", "lib\\n.so"];
    let names = ["", "..", "a/b", "/tmp/x"];
    let paths = ["/etc/x", "../x", "a/../../x", "", "gen/guest/build.rs", "api.json"];
    let api = |name: &str, soname: &str| format!("api(\"{name}\", \"1\", \"{soname}\");");
    let line = sonames.iter().map(|soname| (api("n", soname), "a soname is a plain file name"));
    let line = line.chain(names.iter().map(|name| (api(name, "libn.so"), "the name of an API is a plain file name")));
    let line = line.chain(sonames.iter().map(|s| (format!("dropin(\"{s}\");"), "a soname is a plain file name")));
    let line = line.chain(paths.iter().map(|p| (format!("file(\"{p}\", \"\");"), "`file` names a file below")));
    for (line, expected) in line {
        let folder = Folder::new("names", &[("main.lapis", &format!("#include \"small.h\"\n{line}"))]);
        let message = folder.load().expect_err(&line);
        assert!(message.contains(expected) && message.contains("main.lapis:2:"), "{line}: {message}");
    }
}

const STATUS_HEADER: &str = "#include <stddef.h>\ntypedef struct st st_object; typedef struct st *st_status; typedef struct thing *st_thing;\nst_status st_make(int code); void st_free(const st_object *status);\nst_status st_open(st_thing *thing); st_object *st_close(st_thing thing); int st_count(st_thing thing);\n";

/// Errors of a specification with a status type, the second line of `main.lapis` and what follows it given.
fn status_mistake(text: &str) -> Option<String> {
    let main = format!(
        "#include \"st.h\"\n{text}\nutility(guest) {{ st_status made(int n) {{ return (st_status)(size_t)(n + 64); }} int number(void) {{ return 1; }} }} utility(server) {{ st_status there(void) {{ return 0; }} }}\n\
         st_open(st_thing *thing) {{ argument(thing) {{ out; element {{ allocate; }} }} }} st_free(const st_object *status) {{ argument(status) {{ deallocate; }} }}"
    );
    let folder = Folder::new("status", &[("st.h", STATUS_HEADER), ("main.lapis", &main)]);
    folder.load().err()
}

#[test]
fn status_objects_never_look_like_success() {
    const GOOD: &str = "type(st_status) { status; success(NULL); failure(made(1)); lost(made(2)); } st_close(st_thing thing) { argument(thing) { deallocate; } }";
    assert_eq!(status_mistake(GOOD), None);
    let cases = [
        ("success(NULL);", "success((st_status)8);", None),
        ("failure(made(1));", "failure(NULL);", Some("`failure` is the value of success")),
        ("lost(made(2));", "lost((st_status)0);", Some("`lost` is the value of success")),
        ("lost(made(2));", "lost(made(2)); unsupported(NULL);", Some("`unsupported` is the value of success")),
        ("lost(made(2));", "", Some("a status type without `lost`")),
        ("failure(made(1)); lost(made(2));", "", Some("a status type without `failure`, `lost`")),
        ("status;", "", Some("is a pointer: what tells of an error is an object")),
        ("lost(made(2));", "lost(st_make(2));", Some("`lost` is wanted where no server answers")),
        ("lost(made(2));", "lost(there());", Some("`lost` is wanted where no server answers")),
        ("lost(made(2));", "lost(number());", Some("a status object is a pointer")),
        ("{ argument(thing)", "{ failure(NULL); argument(thing)", Some("`failure` is the value of success")),
        ("{ argument(thing)", "{ async; argument(thing)", Some("is asynchronous but returns a `st_status`")),
        ("{ argument(thing)", "{ require(1 > 0, 1); argument(thing)", Some("`require` cannot make a status object")),
        ("{ argument(thing)", "{ return_value { opaque; } argument(thing)", Some("cannot cross as something else")),
    ];
    for (from, to, expected) in cases {
        assert!(GOOD.contains(from), "{from}");
        let message = status_mistake(&GOOD.replace(from, to));
        match (&message, expected) {
            (None, None) => {}
            (Some(message), Some(expected)) => {
                assert!(message.contains(expected) && message.contains("main.lapis:"), "{to}: {message}");
            }
            _ => panic!("{to}: {message:?}, expected {expected:?}"),
        }
    }
}

/// What `check` accepts is compiled on both sides: a code that one of them cannot compute is an error.
#[test]
fn codes_are_known_where_they_are_wanted() {
    let wanted = [
        ("type(sm_status) { success(SM_OK); failure(f(1)); }", Some("`failure` of an error type is a constant")),
        ("type(sm_status) { success(SM_OK); lost(f(1)); }", Some("`lost` of an error type is a constant")),
        ("type(sm_status) { success(f(0)); }", Some("`success` is a constant")),
        ("type(sm_status) { success(SM_OK); failure(SM_OK); }", Some("`failure` is the value of success")),
        ("type(sm_buffer) { handle; invalid(f(1)); }", Some("`invalid` is a constant")),
        ("sm_hint(sm_device device, int level) { failure(f(1)); unsupported(2); }", None),
        ("sm_hint(sm_device device, int level) { failure(f(1)); }", None),
        ("sm_hint(sm_device device, int level) { failure(g()); }", Some("`failure` is wanted where no server answers")),
        (
            "sm_hint(sm_device device, int level) { async; success(1); failure(f(1)); }",
            Some("asynchronous function is a constant"),
        ),
    ];
    for (line, expected) in wanted {
        let line = line.replace(" unsupported(2);", "");
        let main = format!(
            "#include \"small.h\"\n{line}\nutility(guest) {{ int f(int x) {{ return x; }} }} utility(server) {{ int g(void) {{ return 1; }} }}"
        );
        let message = Folder::new("codes", &[("main.lapis", &main)]).load().err();
        let fits = match (&message, expected) {
            (None, None) => true,
            (Some(message), Some(expected)) => message.contains(expected) && message.contains("main.lapis:2:"),
            _ => false,
        };
        assert!(fits, "{line}: {message:?}");
    }
}

#[test]
fn names_of_one_type_are_one_type() {
    let header = "typedef struct h_object object; typedef object *handle; typedef handle other; typedef struct h_object alias;\nint use(handle a, object *b, struct h_object *c, const object *d, object *const e, other f, const alias *g);\ntypedef void *display; typedef void *surface; typedef unsigned number; typedef unsigned index;\nint draw(display a, surface b, number c, index d);\n";
    let rest = "use(handle a, object *b, struct h_object *c, const object *d, object *const e, other f, const alias *g) { argument(a) { deallocate; } }\ndraw(display a, surface b, number c, index d) { }";
    for name in ["handle", "object *", "struct h_object *", "const alias *", "other"] {
        let main = format!(
            "#include \"h.h\"\ntype({name}) {{ handle; }}\ntype(display) {{ handle; }} type(surface) {{ handle; }} type(number) {{ handle; }} type(index) {{ handle; }}\n{rest}"
        );
        let loaded = Folder::new("same", &[("h.h", header), ("main.lapis", &main)]).loaded();
        let handles = |function: usize| -> Vec<Option<usize>> {
            loaded.model.functions[function].signature.parameters.iter().map(|(_, ty)| ty.handle).collect()
        };
        assert_eq!(handles(0), [Some(0); 7], "{name}");
        assert_eq!(handles(1), [Some(1), Some(2), Some(3), Some(4)], "{name}");
    }
    let main = format!("#include \"h.h\"\ntype(handle) {{ handle; }}\ntype(object *) {{ handle; }}\n{rest}");
    let message = Folder::new("same-twice", &[("h.h", header), ("main.lapis", &main)]).load().expect_err("a mistake");
    assert!(message.contains("`object*` is described twice") && message.contains("main.lapis:3:1"), "{message}");
    assert!(message.contains("first description") && message.contains("`handle` is another name"), "{message}");
}
