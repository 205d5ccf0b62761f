use proptest::prelude::*;

use super::*;

fn atoms(text: &str) -> Option<Vec<String>> {
    let config = Config::parse(text);
    assert_eq!(config.bad_line, None, "{text}");
    let value = config.get("vgpu")?;
    Some(value.atoms().into_iter().map(Into::into).collect())
}

#[test]
fn a_list_may_be_written_in_many_ways() {
    for text in [
        "vgpu = ['gpu=bdw,slot=10']",
        "vgpu=[\"gpu=bdw,slot=10\"]",
        "vgpu = [ 'gpu=bdw,slot=10', ] # the last comma counts nothing",
        "vgpu = [\n  # a comment\n  'gpu=bdw,slot=10' ,\n\n]\n",
        "vgpu = 'gpu=bdw,slot=10'",
        "memory = 512; vgpu = ['gpu=bdw,slot=10']; vcpus = 2",
        "vgpu = ['x']\nvgpu = ['gpu=bdw,slot=10']",
        "# vgpu = ['y']\nvgpu = ['gpu=bdw,slot=10']",
        "vgpu += ['gpu=bdw,slot=10']",
        "name = \"vgpu = ['z']\"\nvgpu = ['gpu=bdw,slot=10']",
        "\tvgpu\t=\t['gpu=bdw,slot=10']\r\n",
    ] {
        assert_eq!(
            atoms(text).as_deref(),
            Some(&["gpu=bdw,slot=10".to_owned()][..]),
            "{text}"
        );
    }
}

#[test]
fn lists_grow_and_nest() {
    assert_eq!(
        atoms("vgpu = ['a', \"b\"]\nvgpu += ['c', 0x10]").unwrap(),
        ["a", "b", "c", "0x10"]
    );
    assert_eq!(atoms("vgpu = [['a'], 'b']").unwrap(), ["b"]);
    assert_eq!(atoms("vgpu = []").unwrap(), Vec::<String>::new());
    assert_eq!(atoms("vgpu.x = ['a']\nmy_vgpu = 'b'"), None);
}

#[test]
fn escapes_stand_for_what_xl_says() {
    assert_eq!(atoms(r#"vgpu = 'a\'b"c\\\n'"#).unwrap(), ["a'b\"c\\\n"]);
    assert_eq!(
        atoms(r#"vgpu = "\"' # no comment""#).unwrap(),
        ["\"' # no comment"]
    );
}

#[test]
fn a_bad_line_is_noted_and_the_rest_read() {
    for bad in [
        "vgpu",
        "vgpu = ",
        "vgpu = [",
        "vgpu = ['a' 'b']",
        "vgpu = 'a",
        "vgpu = (1)",
        "vgpu = 'a' 'b'",
        "VGPU = 'a'",
        "vgpu = -1",
        r"vgpu = '\q'",
    ] {
        let config = Config::parse(&format!("memory = 1\n{bad}\n"));
        assert!(config.bad_line.is_some(), "{bad}");
        assert_eq!(config.text("memory"), Some("1"));
        assert_eq!(config.get("vgpu"), None, "{bad}");
    }
    let config = Config::parse("a = (\nvgpu = 'x'");
    assert_eq!(config.bad_line, Some(1));
    assert_eq!(config.text("vgpu"), Some("x"));
}

#[test]
fn deep_nesting_is_given_up() {
    let config = Config::parse(&format!("vgpu = {}", "[".repeat(100_000)));
    assert_eq!(config.bad_line, Some(1));
}

proptest! {
    #[test]
    fn any_text_is_read_to_its_end(text in "[a-z=+#'\"\\\\\\[\\],; \n0-9é]{0,200}") {
        let config = Config::parse(&text);
        prop_assert!(config.bad_line.is_none_or(|l| l <= text.lines().count() + 1));
    }

    #[test]
    fn a_quoted_string_reads_back(text in "\\PC{0,40}") {
        let line = format!("vgpu = [{}]", crate::vgpu::quote(&text));
        let config = Config::parse(&line);
        prop_assert_eq!(config.get("vgpu"), Some(&Value::List(vec![Value::Atom(text)])));
    }
}
