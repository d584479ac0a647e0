//! Specifications made of several files, and what is said when C text is wrong.

use aviary_lapis::model::{Callee, ExprKind, Side, Support};
use aviary_lapis::{Loaded, Options, build, generate, load, lower};
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
    assert!(matches!(metadata.kind, ExprKind::Metadata(..)));
    let hint = loaded.model.functions.iter().find(|f| f.name == "sm_hint").expect("a function");
    assert!(matches!(&hint.after_server[0].value.kind, ExprKind::Call(Callee::Utility(_), _)));

    let wrong = main.replace("after(here(device) + both(1))", "require(here(device), 1); after(hidden(1))");
    let message = Folder::new("wrong", &[("main.lapis", &wrong)]).load().expect_err("a mistake");
    assert!(message.contains("`require` cannot use `here`"), "{message}");
    assert!(message.contains("`hidden` is static"), "{message}");
}

/// Two files of one side, each with a private function of the same name.
fn units() -> [(&'static str, &'static str); 5] {
    let main = "api(\"small\", \"1\", \"libsmall.so\"); #include \"small.h\"
struct facts { int known; };
declare_metadata(struct facts);
utility(server) \"server/one.c\"; utility(server) \"server/two.c\"; utility \"both.c\";
utility(server) { int inline_one(void) { return aviary_owes_error(); } }
sm_hint(sm_device device, int level) { after_server(one(device) + two(device) + inline_one()); after(both(device)); }";
    [
        ("main.lapis", main),
        ("server/shared.h", "#include <aviary/server.h>\n#include \"small_types.h\"\nint two(sm_device d);\n"),
        (
            "server/one.c",
            "#include \"shared.h\"\nstatic int own(void) { return 1; }\nint one(sm_device d) { aviary_log(\"%d\", own()); return two(d); }\n",
        ),
        (
            "server/two.c",
            "#include \"shared.h\"\nstatic struct facts own;\nint two(sm_device d) { return metadata(struct facts, d) ? own.known : 0; }\n",
        ),
        (
            "both.c",
            "#include \"small_types.h\"\n#include <aviary.h>\n#ifdef AVIARY_GUEST\nint both(sm_device d) { return aviary_is_handle(d); }\n#else\nint both(sm_device d) { return aviary_owes_error() && d; }\n#endif\n",
        ),
    ]
}

#[test]
fn each_utility_file_is_a_translation_unit() {
    let loaded = Folder::new("units", &units()).loaded();
    let side = |name: &str| loaded.model.utility_functions.iter().find(|f| f.name == name).map(|f| f.side);
    assert_eq!((side("one"), side("two"), side("both")), (Some(Side::Server), Some(Side::Server), Some(Side::Both)));
    assert_eq!(side("own"), None);
}

#[test]
fn a_utility_file_sees_nothing_of_its_neighbours() {
    let mut files = units();
    files[2].1 = "#include \"shared.h\"\nint one(sm_device d) { return d && own.known; }\n";
    let message = Folder::new("neighbours", &files).load().expect_err("a mistake");
    assert!(message.contains("undeclared identifier 'own'") && message.contains("server/one.c:2:1"), "{message}");
}

#[test]
fn a_file_without_headers_is_told_which_there_are() {
    let mut files = units();
    files[3].1 = "int two(sm_device d) { return metadata(struct facts, d) != 0; }\n";
    let message = Folder::new("headers", &files).load().expect_err("a mistake");
    assert!(
        message.contains("server/two.c:1:1") && message.contains("each utility file is compiled by itself"),
        "{message}"
    );
    assert!(
        message.contains("`#include \"small_types.h\"`") && message.contains("`#include <aviary/server.h>`"),
        "{message}"
    );
}

/// The database is what editors and the lint compile by: each command of it must do, and the headers are on its path.
#[test]
fn the_compile_commands_open_each_file() {
    use std::process::Command;
    let folder = Folder::new("commands", &units());
    let loaded = folder.loaded();
    let out = folder.0.join("out");
    let write = || {
        let all = build::Folder::at(&out).expect("a folder");
        let own = all.below("small").expect("a folder");
        let program = lower::lower(&loaded.model);
        let sources = generate::generate(&loaded.model, &program, 0);
        build::write_c(&loaded.model, &sources, &all, &own).expect("written");
    };
    write();
    // Another API's commands are kept when this one is built again.
    fs::create_dir_all(out.join("other")).expect("a folder");
    fs::write(out.join("other/compile_commands.json"), "[{\"file\": \"/other.c\"}]").expect("written");
    write();
    let read = |path: &Path| -> Vec<serde_json::Value> {
        serde_json::from_str(&fs::read_to_string(path).expect("a database")).expect("JSON")
    };
    let entries = read(&out.join("small/compile_commands.json"));
    let merged = read(&out.join("compile_commands.json"));
    assert_eq!(merged.len(), entries.len() + 1);
    let names: Vec<&str> = entries.iter().filter_map(|e| e["file"].as_str()?.rsplit('/').next()).collect();
    let generated = ["support.c", "shims.c", "inline.c"];
    let expected = [&generated[..], &["both.c"], &generated, &["one.c", "two.c", "both.c"]].concat();
    assert_eq!(names, expected);
    for entry in &entries {
        let arguments: Vec<&str> =
            entry["arguments"].as_array().expect("a list").iter().filter_map(|a| a.as_str()).collect();
        let done = Command::new(arguments[0])
            .args(&arguments[1..])
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
            .current_dir(entry["directory"].as_str().expect("a folder"))
            .output()
            .expect("a C compiler");
        assert!(done.status.success(), "{entry}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

const STRUCTURES: &str = "#include \"small.h\"
struct device_facts { int known; long serial; }; struct buffer_facts { size_t bytes; }; struct nobodys { int x; };
type(sm_status) { success(SM_OK); }
type(sm_device) { handle; metadata(struct device_facts); }
type(sm_buffer) { handle; metadata(struct buffer_facts); }
utility { long serial(sm_device d) { return metadata(struct device_facts, d)->serial; } }
sm_close(sm_device device) { after(metadata(device)->serial + serial(device)); }
sm_write(sm_buffer buffer, const void *from, size_t bytes) {
  require(bytes <= metadata(buffer)->bytes, SM_REFUSED); argument(from) { in; buffer(bytes); } }";

#[test]
fn each_handle_type_carries_its_own_structure() {
    let loaded = Folder::new("structures", &[("main.lapis", STRUCTURES)]).loaded();
    let carried = |name: &str| {
        let handle = loaded.model.handle_types.iter().find(|h| h.name == name).expect("a handle type");
        handle.metadata.as_ref().map(|m| (m.kind, m.ty.size()))
    };
    assert_eq!((carried("sm_device"), carried("sm_buffer")), (Some((1, 16)), Some((2, 8))));
    let close = loaded.model.functions.iter().find(|f| f.name == "sm_close").expect("a function");
    let mut kinds = Vec::new();
    close.after[0].value.walk(&mut |e| {
        if let ExprKind::Metadata(_, kind) = &e.kind {
            kinds.push(*kind)
        }
    });
    assert_eq!(kinds, [1]);

    // Status objects are handles, too.
    let status = "#include \"st.h\"\nstruct facts { int code; }; utility(guest) { st_status made(int n) { return (st_status)(size_t)(n + 64); } }\n\
                  type(st_status) { status; success(NULL); failure(made(1)); lost(made(2)); metadata(struct facts); }";
    let loaded = Folder::new("status-structure", &[("st.h", STATUS_HEADER), ("main.lapis", status)]).loaded();
    let handle = loaded.model.handle_types.iter().find(|h| h.name == "st_status").expect("a handle type");
    assert_eq!(handle.metadata.as_ref().map(|m| (m.kind, m.ty.size())), Some((1, 4)));

    // Types without a structure of their own have the common one.
    let common = STRUCTURES.replace(
        "type(sm_buffer) { handle; metadata(struct buffer_facts); }",
        "declare_metadata(struct buffer_facts);",
    );
    let loaded = Folder::new("common", &[("main.lapis", &common)]).loaded();
    let kinds = loaded.model.handle_types.iter().map(|h| (h.name.as_str(), h.metadata.as_ref().map(|m| m.kind)));
    let kinds: std::collections::BTreeMap<_, _> = kinds.collect();
    assert_eq!((kinds["sm_device"], kinds["sm_buffer"]), (Some(1), Some(2)));
}

#[test]
fn wrong_metadata_is_explained_where_it_is() {
    let cases = [
        // In expressions.
        ("metadata(device)->serial", "metadata(device)->bytes", "main.lapis:7:54", "has no member `bytes`"),
        (" metadata(struct device_facts); }", " }", "main.lapis:7:", "`sm_device` has no metadata"),
        // In C.
        ("metadata(struct device_facts, d)", "metadata(struct nobodys, d)", "main.lapis:6:1", "in C text:"),
        (
            "metadata(struct device_facts, d)",
            "metadata(struct buffer_facts, d)",
            "main.lapis:6:1",
            "no member named 'serial'",
        ),
        // In declarations.
        (
            "metadata(struct device_facts); }",
            "metadata(int); }",
            "main.lapis:4:36",
            "metadata must be a complete struct",
        ),
        (
            "metadata(struct device_facts); }",
            "metadata(struct device_facts); metadata(struct buffer_facts); }",
            "main.lapis:4:",
            "a second structure for one type",
        ),
        (
            "type(sm_status) { success(SM_OK);",
            "type(sm_status) { success(SM_OK); metadata(struct device_facts);",
            "main.lapis:3:",
            "`metadata` without `handle`",
        ),
    ];
    for (right, wrong, place, said) in cases {
        assert!(STRUCTURES.contains(right), "{right}");
        let message = Folder::new("wrong-metadata", &[("main.lapis", &STRUCTURES.replacen(right, wrong, 1))]).load();
        let message = message.map(|_| ()).expect_err(wrong);
        assert!(message.contains(place) && message.contains(said), "{wrong}: {message}");
    }
}

#[test]
fn a_drain_is_asked_with_a_structure() {
    let with = |drain: &str| {
        format!(
            "#include \"small.h\"
utility(server) {{
  unsigned long one(void) {{ return 1; }} const char *name(unsigned long device) {{ return device ? \"d\" : 0; }}
  {drain}
}}
sm_hint(sm_device device, int level) {{ occupies(one(), drain, name); }}"
        )
    };
    for right in ["const struct aviary_drain *asked", "struct aviary_drain *asked"] {
        let code = format!("int drain({right}) {{ return asked->patience_ns == 0 && asked->wait && asked->device; }}");
        Folder::new("drain", &[("main.lapis", &with(&code))]).loaded();
    }
    for wrong in ["unsigned long device", "const void *asked", "const struct aviary_drain *asked, int more", "void"] {
        let main = with(&format!("int drain({wrong}) {{ return 0; }}"));
        let message = Folder::new("wrong-drain", &[("main.lapis", &main)]).load().map(|_| ()).expect_err(wrong);
        assert!(message.contains("main.lapis:6:") && message.contains("is not asked as a drain is"), "{message}");
        assert!(message.contains("`int drain(const struct aviary_drain *)`"), "{message}");
    }
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
    let own = ["server.so", "gen", "api.json", "policy.o", "compile_commands.json"];
    let sonames = ["/usr/lib/libn.so.1", "./libn.so.1", "a/b", "..", ".", "", "lib\\0n.so", "lib\\n.so"];
    let sonames: Vec<&str> = sonames.into_iter().chain(own).collect();
    let names = ["", "..", "a/b", "/tmp/x", "my-lib.v2", "größe"];
    let paths = ["/etc/x", "../x", "a/../../x", "", "gen/guest/build.rs", "compile_commands.json"];
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
        ("lost(made(2));", "lost(made(2)); absent(NULL);", Some("`absent` is the value of success")),
        ("lost(made(2));", "lost(made(2)); absent(made(3));", None),
        ("lost(made(2));", "", Some("a status type without `lost`")),
        ("failure(made(1)); lost(made(2));", "", Some("a status type without `failure`, `lost`")),
        ("status;", "", Some("is a pointer: what tells of an error is an object")),
        ("lost(made(2));", "lost(st_make(2));", Some("`lost` is wanted where no server answers")),
        ("lost(made(2));", "lost(there());", Some("`lost` is wanted where no server answers")),
        ("lost(made(2));", "lost(number());", Some("a status object is a pointer")),
        ("{ argument(thing)", "{ failure(NULL); argument(thing)", Some("`failure` is the value of success")),
        ("{ argument(thing)", "{ async; argument(thing)", Some("is asynchronous but reports by a `st_status`")),
        ("{ argument(thing)", "{ async; late(7); argument(thing)", None),
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

/// A specification that `check` accepts is compiled on both sides: a code that one of them cannot compute is an error.
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
