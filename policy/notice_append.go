package policy

import (
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
)

// noticeMarker is how it is seen that a text has a notice already.
const noticeMarker = "<IMPORTANT>\n  Network Restriction Statement:"

// encodedMarker is the marker in the JSON text of messages.
var encodedMarker = strings.ReplaceAll(noticeMarker, "\n", `\n`)

const (
	injectField = "inject_network_restriction_notice"

	maxRolloutDepth = 200 // of values in each other
	// maxPythonDigits is how long a whole number may be that Python's json reads.
	maxPythonDigits = 4300
)

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
	n, jsonErr := readRollout(input)
	if jsonErr == nil && n.kind != objectNode {
		jsonErr = &Error{Text: n.show(), Problem: "is not the input of a rollout", Repair: "write an object with prompt or messages"}
	}
	if jsonErr != nil {
		return nil, nil, jsonErr
	}
	if notice != "" {
		a := appender{notice: notice}
		if err := a.input(&n, encoded); err != nil {
			return nil, nil, err
		}
		surfaces = a.surfaces
	}
	return n.appendJSON(nil, false), surfaces, nil
}

func readRollout(data []byte) (node, *Error) {
	if err := tooLarge(len(data), MaxDocumentBytes, "JSON"); err != nil {
		return node{}, err
	}
	r := newJSONReader(data, maxRolloutDepth)
	n, err := r.value(0)
	if err != nil {
		return node{}, jsonError(data, err)
	}
	if _, err := r.ReadToken(); err != io.EOF {
		return node{}, &Error{Problem: "something follows the JSON value" + position(data, r.InputOffset()), Repair: "remove it"}
	}
	n.lastWins()
	return n, nil
}

// lastWins keeps of members with the same name the last value in the first place, as Python does.
func (n *node) lastWins() {
	if n.kind == objectNode {
		first := map[string]int{}
		names, kids := n.names[:0], n.kids[:0]
		for i, name := range n.names {
			if at, again := first[name]; again {
				kids[at] = n.kids[i]
				continue
			}
			first[name] = len(names)
			names, kids = append(names, name), append(kids, n.kids[i])
		}
		n.names, n.kids = names, kids
	}
	for i := range n.kids {
		n.kids[i].lastWins()
	}
}

func (n *node) member(name string) *node {
	if i := slices.Index(n.names, name); n.kind == objectNode && i >= 0 {
		return &n.kids[i]
	}
	return nil
}

func (n *node) set(name string, value node) {
	if m := n.member(name); m != nil {
		*m = value
		return
	}
	n.names, n.kids = append(n.names, name), append(n.kids, value)
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

func (a *appender) input(n *node, encoded bool) error {
	prompt, messages := n.member("prompt"), n.member("messages")
	empty := prompt == nil || prompt.kind == nullNode || prompt.kind == stringNode && prompt.text == ""
	switch {
	case empty:
	case prompt.kind == stringNode:
		if err := a.prompt(prompt, encoded); err != nil {
			return err
		}
	case prompt.kind == listNode:
		changed, err := a.messages("/prompt", prompt)
		if err != nil {
			return err
		}
		a.did("prompt-messages", changed)
	default:
		return &Error{Pointer: "/prompt", Text: prompt.show(), Problem: "is not a prompt", Repair: "write a string or a list of messages"}
	}
	none := messages == nil || messages.kind == nullNode || messages.kind == listNode && len(messages.kids) == 0
	switch {
	case none && empty:
		n.set("prompt", node{kind: stringNode, text: a.notice})
		a.did("prompt", true)
	case none:
	case messages.kind == listNode:
		changed, err := a.messages("/messages", messages)
		if err != nil {
			return err
		}
		a.did("messages", changed)
	default:
		return &Error{Pointer: "/messages", Text: messages.show(), Problem: "is not a list", Repair: "write a list of messages"}
	}
	return nil
}

func (a *appender) prompt(prompt *node, encoded bool) error {
	if encoded {
		list, ok, err := encodedMessages(prompt.text)
		if err != nil {
			return err
		}
		if ok {
			changed, err := a.messages("/prompt", &list)
			if err != nil {
				return err
			}
			if changed {
				prompt.text = string(list.appendJSON(nil, true))
			}
			a.did("json-prompt", changed)
			return nil
		}
		if strings.Contains(prompt.text, encodedMarker) {
			return nil // messages with a number that is too large for JSON, once Python has written it
		}
	}
	text, changed := a.text(prompt.text)
	prompt.text = text
	a.did("prompt", changed)
	return nil
}

// encodedMessages reads a prompt that is the JSON text of messages; ok is false for any other text.
func encodedMessages(prompt string) (list node, ok bool, err error) {
	list, jsonErr := readRollout([]byte(prompt))
	if jsonErr != nil || list.kind != listNode || list.hasLongNumber() {
		return node{}, false, nil
	}
	for i := range list.kids {
		if m := &list.kids[i]; m.member("role") == nil || m.member("content") == nil {
			return node{}, false, nil
		}
	}
	return list, true, nil
}

func (n *node) hasLongNumber() bool {
	return n.kind == numberNode && len(strings.TrimPrefix(n.text, "-")) > maxPythonDigits && !strings.ContainsAny(n.text, ".eE") ||
		slices.ContainsFunc(n.kids, func(kid node) bool { return kid.hasLongNumber() })
}

// text appends the notice to a text that has none.
func (a *appender) text(s string) (string, bool) {
	switch {
	case strings.Contains(s, noticeMarker):
		return s, false
	case s == "":
		return a.notice, true
	}
	return strings.TrimRightFunc(s, isPythonSpace) + "\n\n" + a.notice, true
}

// isPythonSpace reports what str.rstrip removes.
func isPythonSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// messages appends the notice to the last message of the user, or as one.
func (a *appender) messages(at jsontext.Pointer, list *node) (changed bool, err error) {
	for i := len(list.kids) - 1; i >= 0; i-- {
		m := &list.kids[i]
		if role := m.member("role"); role == nil || role.kind != stringNode || role.text != "user" {
			continue
		}
		content := m.member("content")
		if content == nil {
			m.set("content", node{kind: nullNode, text: "null"})
			content = m.member("content")
		}
		switch {
		case content.kind == listNode:
			return a.parts(content), nil
		case content.kind == stringNode:
		case content.kind == nullNode || content.text == "false":
			*content = node{kind: stringNode}
		default:
			return false, &Error{Pointer: string(at.AppendToken(strconv.Itoa(i)).AppendToken("content")), Text: content.show(),
				Problem: "is not the content of a message", Repair: "write a string or a list of parts"}
		}
		content.text, changed = a.text(content.text)
		return changed, nil
	}
	list.kids = append(list.kids, object("role", "user", "content", "\n\n"+a.notice))
	return true, nil
}

// parts appends the notice to the last text among the parts of a message, or as one.
func (a *appender) parts(list *node) bool {
	for i := len(list.kids) - 1; i >= 0; i-- {
		for _, key := range []string{"text", "content"} {
			if value := list.kids[i].member(key); value != nil && value.kind == stringNode {
				var changed bool
				value.text, changed = a.text(value.text)
				return changed
			}
		}
	}
	list.kids = append(list.kids, object("type", "text", "text", "\n\n"+a.notice))
	return true
}

// object makes an object of names and strings.
func object(pairs ...string) node {
	n := node{kind: objectNode}
	for i := 0; i < len(pairs); i += 2 {
		n.set(pairs[i], node{kind: stringNode, text: pairs[i+1]})
	}
	return n
}

// appendJSON appends the value as JSON: compact, with numbers as they were spelt, or as Python's json.dumps writes it
// with ensure_ascii=False.
func (n *node) appendJSON(b []byte, python bool) []byte {
	comma, colon := ",", ":"
	if python {
		comma, colon = ", ", ": "
	}
	switch n.kind {
	case stringNode:
		return appendString(b, n.text)
	case numberNode:
		if python {
			return append(b, pythonNumber(n.text)...)
		}
		return append(b, n.text...)
	case objectNode, listNode:
		brackets := "[]"
		if n.kind == objectNode {
			brackets = "{}"
		}
		b = append(b, brackets[0])
		for i := range n.kids {
			if i > 0 {
				b = append(b, comma...)
			}
			if n.kind == objectNode {
				b = append(appendString(b, n.names[i]), colon...)
			}
			b = n.kids[i].appendJSON(b, python)
		}
		return append(b, brackets[1])
	}
	return append(b, n.text...)
}

// pythonNumber is what Python makes of a number: whole ones of any size, others as the shortest text of a double.
func pythonNumber(s string) string {
	if !strings.ContainsAny(s, ".eE") {
		if s == "-0" {
			return "0"
		}
		return s
	}
	f, _ := strconv.ParseFloat(s, 64) // infinite if it is too large, as in Python
	if math.IsInf(f, 0) {
		return s[:len(s)-len(strings.TrimPrefix(s, "-"))] + "Infinity"
	}
	text := strconv.FormatFloat(f, 'e', -1, 64)
	_, exponent, _ := strings.Cut(text, "e")
	if e, _ := strconv.Atoi(exponent); f != 0 && (e < -4 || e >= 16) {
		return text
	}
	text = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
