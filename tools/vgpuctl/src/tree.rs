//! JSON as a tree for people.

use serde_json::Value;

/// `value` below `name`, one line a leaf.
pub fn render(name: &str, value: &Value) -> String {
    let mut text = format!("{name}\n");
    children(value, "", &mut text);
    text
}

fn children(value: &Value, indent: &str, text: &mut String) {
    let list: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), v)).collect(),
        Value::Array(values) => (0..)
            .zip(values)
            .map(|(i, v): (u32, _)| (i.to_string(), v))
            .collect(),
        _ => return,
    };
    let last = list.len().saturating_sub(1);
    for (i, (name, value)) in list.iter().enumerate() {
        let (branch, below) = if i == last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        let leaf = leaf(value).map_or(String::new(), |l| format!(": {l}"));
        // Some of it is what a device model says, which is not to write to this
        // terminal what it likes.
        let line = format!("{name}{leaf}").replace(char::is_control, "\u{fffd}");
        text.push_str(&format!("{indent}{branch}{line}\n"));
        if leaf.is_empty() {
            children(value, &format!("{indent}{below}"), text);
        }
    }
}

/// What stands behind a name on its line, unless it has a tree of its own.
fn leaf(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("none".into()),
        Value::String(s) => Some(s.clone()),
        Value::Array(values) if values.iter().all(|v| !v.is_object() && !v.is_array()) => {
            let items: Vec<String> = values.iter().filter_map(leaf).collect();
            Some(if items.is_empty() {
                "none".into()
            } else {
                items.join(", ")
            })
        }
        Value::Object(map) if map.is_empty() => Some("none".into()),
        Value::Object(_) | Value::Array(_) => None,
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_controls_the_terminal() {
        let value = json!({"a\u{1b}[2J": "b\n\u{9b}31m", "list": ["\r", 1]});
        assert_eq!(
            render("domain 5", &value),
            "domain 5\n\
             ├─ a\u{fffd}[2J: b\u{fffd}\u{fffd}31m\n\
             └─ list: \u{fffd}, 1\n"
        );
    }

    #[test]
    fn branches_follow_the_structure() {
        let value = json!({
            "engines": [{"name": "rcs0", "csb": [1, 2]}, {"name": "bcs0", "csb": []}],
            "failure": null,
            "rings": {"requests": 3}
        });
        assert_eq!(
            render("domain 5", &value),
            "domain 5\n\
             ├─ engines\n\
             │  ├─ 0\n\
             │  │  ├─ csb: 1, 2\n\
             │  │  └─ name: rcs0\n\
             │  └─ 1\n\
             │     ├─ csb: none\n\
             │     └─ name: bcs0\n\
             ├─ failure: none\n\
             └─ rings\n   \
                └─ requests: 3\n"
        );
    }
}
