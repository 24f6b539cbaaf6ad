package policy

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"sluice/policy/pyjson"
)

// noticeMarker is how it is seen that a text has a notice already.
const noticeMarker = "<IMPORTANT>\n  Network Restriction Statement:"

// encodedMarker is the marker in the JSON text of messages.
var encodedMarker = strings.ReplaceAll(noticeMarker, "\n", `\n`)

const injectField = "inject_network_restriction_notice"

// NoticeWanted reports whether an agent shall be told of its network: unless a harness's parameters, as [ParseParams]
// returns them in Other, have inject_network_restriction_notice false.
func NoticeWanted(harness map[string]string) (bool, error) {
	text, given := harness[injectField]
	if !given || text == "true" {
		return true, nil
	}
	if text != "false" {
		return false, &Error{Pointer: string(pointer(injectField)), Problem: "is neither true nor false", Repair: "write false to tell the agent nothing"}
	}
	return false, nil
}

// AppendNotice returns a copy of a rollout's input with a notice behind the instructions in it, as AgentCompass 1.0.1
// does it, and where that was: "prompt", "prompt-messages", "json-prompt" or "messages". An empty notice changes
// nothing, and neither does a second one.
//
// The input is a JSON object; what counts are its prompt (a text, or a list of messages) and its messages. With
// encoded, a prompt that is the JSON text of a list of messages is taken for these. A message has a role and a
// content: a text, or a list of parts. Everything else of the object stays.
//
// The input that artifacts are collected and judged by is the original.
func AppendNotice(input []byte, notice string, encoded bool) (copied []byte, surfaces []string, err error) {
	v, err := pyjson.Parse(input)
	if err != nil {
		return nil, nil, err
	}
	if v.Kind != pyjson.Object {
		return nil, nil, &Error{Text: show(&v), Problem: "is not the input of a rollout", Repair: "write an object with prompt or messages"}
	}
	if notice != "" {
		a := appender{notice: notice}
		if err := a.input(&v, encoded); err != nil {
			return nil, nil, err
		}
		surfaces = a.surfaces
	}
	return v.AppendCompact(nil), surfaces, nil
}

// show returns a value as an error may show it.
func show(v *pyjson.Value) string {
	switch v.Kind {
	case pyjson.String:
		return quote(v.Text)
	case pyjson.Object:
		return "{...}"
	case pyjson.List:
		return "[...]"
	}
	return string(v.AppendCompact(nil))
}

// appender puts one notice into one input.
type appender struct {
	notice   string
	surfaces []string
}

func (a *appender) did(surface string, changed bool) {
	if changed {
		a.surfaces = append(a.surfaces, surface)
	}
}

func (a *appender) input(n *pyjson.Value, encoded bool) error {
	prompt, messages := n.Member("prompt"), n.Member("messages")
	empty := prompt == nil || prompt.Kind == pyjson.Null || prompt.Kind == pyjson.String && prompt.Text == ""
	switch {
	case empty:
	case prompt.Kind == pyjson.String:
		if err := a.prompt(prompt, encoded); err != nil {
			return err
		}
	case prompt.Kind == pyjson.List:
		changed, err := a.messages("/prompt", prompt)
		if err != nil {
			return err
		}
		a.did("prompt-messages", changed)
	default:
		return &Error{Pointer: "/prompt", Text: show(prompt), Problem: "is not a prompt", Repair: "write a string or a list of messages"}
	}
	none := messages == nil || messages.Kind == pyjson.Null || messages.Kind == pyjson.List && len(messages.Values) == 0
	switch {
	case none && empty:
		n.Set("prompt", pyjson.Text(a.notice))
		a.did("prompt", true)
	case none:
	case messages.Kind == pyjson.List:
		changed, err := a.messages("/messages", messages)
		if err != nil {
			return err
		}
		a.did("messages", changed)
	default:
		return &Error{Pointer: "/messages", Text: show(messages), Problem: "is not a list", Repair: "write a list of messages"}
	}
	return nil
}

func (a *appender) prompt(prompt *pyjson.Value, encoded bool) error {
	if encoded {
		if list, ok := encodedMessages(prompt.Text); ok {
			changed, err := a.messages("/prompt", &list)
			if err != nil {
				return err
			}
			if changed {
				prompt.Text = string(list.AppendDump(nil))
			}
			a.did("json-prompt", changed)
			return nil
		}
		if strings.Contains(prompt.Text, encodedMarker) {
			return nil // messages with a number that is too large for JSON, once Python has written it
		}
	}
	text, changed := a.text(prompt.Text)
	prompt.Text = text
	a.did("prompt", changed)
	return nil
}

// encodedMessages reads a prompt that is the JSON text of messages; ok is false for any other text.
func encodedMessages(prompt string) (list pyjson.Value, ok bool) {
	list, err := pyjson.Parse([]byte(prompt))
	if err != nil || list.Kind != pyjson.List || !list.Readable() {
		return pyjson.Value{}, false
	}
	for i := range list.Values {
		if m := &list.Values[i]; m.Member("role") == nil || m.Member("content") == nil {
			return pyjson.Value{}, false
		}
	}
	return list, true
}

// text appends the notice to a text that has none.
func (a *appender) text(s string) (string, bool) {
	switch {
	case strings.Contains(s, noticeMarker):
		return s, false
	case s == "":
		return a.notice, true
	}
	return strings.TrimRightFunc(s, pyjson.IsSpace) + "\n\n" + a.notice, true
}

// messages appends the notice to the last message of the user, or as one.
func (a *appender) messages(at jsontext.Pointer, list *pyjson.Value) (changed bool, err error) {
	for i := len(list.Values) - 1; i >= 0; i-- {
		m := &list.Values[i]
		if role := m.Member("role"); role == nil || role.Kind != pyjson.String || role.Text != "user" {
			continue
		}
		content := m.Member("content")
		if content == nil {
			m.Set("content", pyjson.Value{})
			content = m.Member("content")
		}
		switch {
		case content.Kind == pyjson.List:
			return a.parts(content), nil
		case content.Kind == pyjson.String:
		case content.Kind == pyjson.Null || content.Text == "false":
			*content = pyjson.Text("")
		default:
			return false, &Error{Pointer: string(at.AppendToken(strconv.Itoa(i)).AppendToken("content")), Text: show(content),
				Problem: "is not the content of a message", Repair: "write a string or a list of parts"}
		}
		content.Text, changed = a.text(content.Text)
		return changed, nil
	}
	list.Values = append(list.Values, pyjson.Texts("role", "user", "content", "\n\n"+a.notice))
	return true, nil
}

// parts appends the notice to the last text among the parts of a message, or as one.
func (a *appender) parts(list *pyjson.Value) bool {
	for i := len(list.Values) - 1; i >= 0; i-- {
		for _, key := range []string{"text", "content"} {
			if value := list.Values[i].Member(key); value != nil && value.Kind == pyjson.String {
				var changed bool
				value.Text, changed = a.text(value.Text)
				return changed
			}
		}
	}
	list.Values = append(list.Values, pyjson.Texts("type", "text", "text", "\n\n"+a.notice))
	return true
}
