package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// A walker turns the nodes of a document into policies and collects what is wrong.
type walker struct {
	errs  Errors
	older bool // the phases have their older names
}

func (w *walker) document(n *node) Document {
	known := func(fields []string) bool {
		return slices.ContainsFunc(n.names, func(name string) bool { return slices.Contains(fields, name) })
	}
	switch {
	case n.kind == objectNode && (known(phaseFields) || known(olderFields)):
		return w.layer(n)
	case n.kind == objectNode && !known(policyFields):
		w.errs.add("", &Error{Text: n.show(), Problem: "holds no policy",
			Repair: "write network_mode for one policy, or " + strings.Join(phaseFields, ", ")})
		return Document{}
	}
	p, from := w.policy("", n)
	return Document{Policy: &p, places: places{Baseline: from}}
}

func (w *walker) layer(n *node) Document {
	fields := phaseFields
	w.older = slices.ContainsFunc(n.names, func(name string) bool { return isOlder(name) })
	if w.older {
		fields = olderFields
		for _, name := range n.names {
			if isOlder(name) && slices.ContainsFunc(n.names, isNewer) {
				w.errs.add(pointer(name), &Error{Problem: "mixes the older field names with the present ones", Repair: "write " + newerName(name)})
			}
		}
		if len(w.errs.All) > 0 {
			return Document{}
		}
	}
	var doc Document
	for phase, value := range w.fields("", n, fields) {
		if value != nil {
			p, from := w.policy(pointer(fields[phase]), value)
			doc.Phases[phase], doc.places[phase] = &p, from
			doc.places[phase].field = fields[phase]
		}
	}
	if base := doc.Phases[Baseline]; w.older && base != nil {
		for phase := range doc.Phases {
			if doc.Phases[phase] == nil {
				doc.Phases[phase] = base
			}
		}
	}
	return doc
}

func isOlder(field string) bool {
	return slices.Contains(olderFields, field) && !slices.Contains(phaseFields, field)
}

func isNewer(field string) bool {
	return slices.Contains(phaseFields, field) && !slices.Contains(olderFields, field)
}

func newerName(older string) string { return phaseFields[slices.Index(olderFields, older)] }

func pointer(name string) jsontext.Pointer { return jsontext.Pointer("").AppendToken(name) }

// fields returns the values of an object's known fields, in their order, nil where one is missing.
func (w *walker) fields(at jsontext.Pointer, n *node, known []string) []*node {
	values := make([]*node, len(known))
	for i, name := range n.names {
		k := slices.Index(known, name)
		switch {
		case k < 0:
			w.errs.add(at.AppendToken(token(name)), &Error{Text: quote(name), Problem: "is not a known field",
				Repair: "write " + strings.Join(known, ", ") + " or remove it"})
		case values[k] != nil:
			w.errs.add(at.AppendToken(name), &Error{Text: quote(name), Problem: "stands here twice", Repair: "keep one"})
		default:
			values[k] = &n.kids[i]
		}
	}
	return values
}

func (w *walker) policy(at jsontext.Pointer, n *node) (Policy, place) {
	switch n.kind {
	case stringNode:
		mode, err := parseWord[Mode]("mode", modeWords, n.text)
		if err == nil && mode.hasTargets() {
			err = &Error{Text: n.show(), Problem: "needs targets", Repair: "write an object with network_mode and " + listField(mode)}
		}
		if err != nil {
			w.errs.add(at, err)
		}
		return Policy{Mode: mode}, place{}
	case objectNode:
		return w.policyObject(at, n)
	}
	w.errs.add(at, &Error{Text: n.show(), Problem: "is not a policy",
		Repair: `write "public", "no-network" or an object with network_mode; leave a phase out to keep its default`})
	return Policy{}, place{}
}

func (w *walker) policyObject(at jsontext.Pointer, n *node) (Policy, place) {
	f := w.fields(at, n, policyFields)
	p := Policy{Options: w.options(at, f[3], f[4], f[5], f[6], f[7])}
	if f[0] == nil {
		w.errs.add(at, &Error{Text: n.show(), Problem: "has no network_mode", Repair: "add one of " + oneOf(modeWords)})
		return p, place{}
	}
	mode, ok := readWord[Mode](w, at.AppendToken("network_mode"), f[0], "mode", modeWords)
	if !ok {
		return p, place{}
	}
	if w.older && mode == Denylist {
		w.errs.add(at.AppendToken("network_mode"), &Error{Text: f[0].show(), Problem: "is not a mode of the older field names",
			Repair: "write the phases as " + strings.Join(phaseFields, ", ")})
	}
	p.Mode = mode
	var from place
	for i, listMode := range []Mode{1: Allowlist, 2: Denylist} {
		switch list := f[i]; {
		case i == 0:
		case listMode == mode:
			p.Targets, from = w.targets(at, mode, list)
		case list != nil && (list.kind != listNode || len(list.kids) > 0):
			w.errs.add(at.AppendToken(listField(listMode)), &Error{Text: list.show(),
				Problem: fmt.Sprintf("belongs to the mode %s, not to %s", listMode, mode), Repair: strayRepair(mode, listMode)})
		}
	}
	return p, from
}

func listField(m Mode) string {
	if m == Denylist {
		return "denied_hosts"
	}
	return "allowed_hosts"
}

func strayRepair(mode, list Mode) string {
	switch mode {
	case Allowlist:
		return "remove it: what an allowlist does not name is refused"
	case Denylist:
		return "remove it: what a denylist does not name is allowed"
	}
	return fmt.Sprintf("remove it, or write the mode %s", list)
}

func (w *walker) options(at jsontext.Pointer, inbound, ech, uniqueNames, questionBytes, observe *node) (o Options) {
	if inbound != nil {
		o.Inbound, _ = readWord[Inbound](w, at.AppendToken("inbound"), inbound, "value of inbound", inboundWords)
	}
	if ech != nil {
		word, _ := readWord[uint8](w, at.AppendToken("ech"), ech, "value of ech", echWords)
		o.KeepECH = word == echKeep
	}
	o.DNSUniqueNames = w.budget(at.AppendToken("dns_unique_names"), uniqueNames, maxDNSUniqueNames, "names")
	o.DNSQuestionBytes = w.budget(at.AppendToken("dns_question_bytes"), questionBytes, maxDNSQuestionBytes, "bytes")
	if observe != nil {
		if observe.kind != boolNode {
			w.errs.add(at.AppendToken("observe"), &Error{Text: observe.show(), Problem: "is neither true nor false", Repair: "write true, or leave it out"})
		}
		o.Observe = observe.kind == boolNode && observe.text == "true"
	}
	return o
}

// budget reads how many of something there may be; 0 if n is missing.
func (w *walker) budget(at jsontext.Pointer, n *node, most int, what string) int {
	if n == nil {
		return 0
	}
	number, ok := n.number(most)
	if !ok {
		w.errs.add(at, &Error{Text: n.show(), Problem: "is not a number of " + what,
			Repair: fmt.Sprintf("write 1 to %d in plain digits, or leave it out for no limit", most)})
	}
	return number
}

// readWord reads a string that must be one of words.
func readWord[T ~uint8](w *walker, at jsontext.Pointer, n *node, what string, words []string) (T, bool) {
	if n.kind != stringNode {
		w.errs.add(at, &Error{Text: n.show(), Problem: "is not a string", Repair: "write " + oneOf(words)})
		return 0, false
	}
	v, err := parseWord[T](what, words, n.text)
	if err != nil {
		w.errs.add(at, err)
	}
	return v, err == nil
}

// targets reads the list that belongs to a mode. Its node is nil if it is missing.
func (w *walker) targets(at jsontext.Pointer, mode Mode, list *node) ([]Target, place) {
	field := listField(mode)
	if list == nil {
		w.errs.add(at, &Error{Problem: fmt.Sprintf("has no %s", field), Repair: emptyRepair(mode)})
		return nil, place{}
	}
	at = at.AppendToken(field)
	switch {
	case list.kind != listNode:
		w.errs.add(at, &Error{Text: list.show(), Problem: "is not a list", Repair: `write a list of targets, as in ["api.example.com"]`})
		return nil, place{}
	case len(list.kids) == 0:
		w.errs.add(at, &Error{Problem: fmt.Sprintf("is empty in the mode %s", mode), Repair: emptyRepair(mode)})
		return nil, place{}
	case len(list.kids) > MaxTargets:
		w.errs.add(at, &Error{Problem: fmt.Sprintf("has %d targets, more than %d", len(list.kids), MaxTargets), Repair: "use wildcards and networks instead of single targets"})
		return nil, place{}
	}
	targets := make([]placed, 0, len(list.kids))
	for i := range list.kids {
		t, err := parseEntry(&list.kids[i])
		if err == nil && w.older && t.Port != 0 {
			err = &Error{Text: list.kids[i].show(), Problem: "has a port, which targets under the older field names do not have",
				Repair: "write the phases as " + strings.Join(phaseFields, ", ")}
		}
		if err != nil {
			w.errs.add(at.AppendToken(strconv.Itoa(i)), err)
			continue
		}
		targets = append(targets, placed{t, i})
	}
	return normalForm(targets)
}

func emptyRepair(mode Mode) string {
	if mode == Denylist {
		return "name what it refuses, or write the mode public"
	}
	return "name what it allows, or write the mode no-network"
}

// parseEntry reads a target in either form.
func parseEntry(n *node) (Target, *Error) {
	switch n.kind {
	case stringNode:
		return parser{}.target(n.text)
	case objectNode:
		return parseTargetObject(n)
	}
	repair := `write a string in quotes, or {"host": "api.example.com", "port": 443}`
	if n.kind == nullNode {
		repair = "write a target or remove the entry"
	}
	return Target{}, &Error{Text: n.show(), Problem: "is not a target", Repair: repair}
}

func parseTargetObject(n *node) (Target, *Error) {
	w := walker{}
	f := w.fields("", n, targetFields)
	if len(w.errs.All) > 0 {
		return Target{}, w.errs.All[0]
	}
	host, port := f[0], f[1]
	if host == nil {
		return Target{}, &Error{Text: n.show(), Problem: "has no host", Repair: `write it as in {"host": "api.example.com", "port": 443}`}
	}
	if host.kind != stringNode {
		return Target{}, &Error{Pointer: "/host", Text: host.show(), Problem: "is not a string", Repair: "write a host, an address or a network in quotes"}
	}
	t, err := parser{}.host(host.text)
	if err != nil {
		err.Pointer = "/host"
		return Target{}, err
	}
	if port == nil {
		return t, nil
	}
	number, ok := port.number(65535)
	if !ok {
		return Target{}, &Error{Pointer: "/port", Text: port.show(), Problem: "is not a port",
			Repair: "write 1 to 65535 in plain digits without quotes, or leave it out for every port"}
	}
	t.Port = uint16(number)
	return t, nil
}

// placed is a target with its index in the list it was read from.
type placed struct {
	Target
	index int
}

// place says where the targets of a policy stood: the phase's field, "" for a single policy, and for each target in
// normal form the index in its list.
type place struct {
	field   string
	indices []int
}

// places belongs to a [Document]: by phase, a single policy's under Baseline.
type places [PhaseCount]place

// normalForm sorts targets and removes duplicates, of which the first stays.
func normalForm(targets []placed) ([]Target, place) {
	slices.SortStableFunc(targets, func(a, b placed) int { return a.Compare(b.Target) })
	targets = slices.CompactFunc(targets, func(a, b placed) bool { return a.Target == b.Target })
	sorted := make([]Target, len(targets))
	from := place{indices: make([]int, len(targets))}
	for i, t := range targets {
		sorted[i], from.indices[i] = t.Target, t.index
	}
	return sorted, from
}
