package policy

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Params is what an object that holds more than policies says about them: the parameters of a run's environment, or a
// task's sample.
type Params struct {
	Layer Layer
	// Older reports whether the phases have their older field names.
	Older bool
	// Other are the fields that are no policies, each with its text if it is a string, a number or a bool, else with "".
	Other map[string]string
}

// ParseParams reads an object in JSON or YAML that may name phases as [Parse] describes, in either generation of
// field names, beside fields that are others' business. A field that looks like a misspelt one about policies is an
// error, and so is a phase's field deeper in another one, unless the caller reads that one itself: nothing would be in
// force where its author believes that something is. Errors are an *[Errors].
func ParseParams(data []byte, readByCaller ...string) (Params, error) {
	n, err := readDocument(data)
	w := walker{}
	p := Params{Other: map[string]string{}}
	switch {
	case err != nil:
		w.errs.add("", err)
	case n.kind != objectNode:
		w.errs.add("", &Error{Text: n.show(), Problem: "is not an object", Repair: `write one, as in {"run_network_policy": "no-network"}`})
	default:
		p.Layer, p.Older = w.params(&n, p.Other, readByCaller)
	}
	if err := w.errs.err(); err != nil {
		return Params{}, err
	}
	return p, nil
}

func (w *walker) params(n *node, other map[string]string, readByCaller []string) (Layer, bool) {
	phases := node{kind: objectNode}
	for i, name := range n.names {
		if slices.Contains(phaseFields, name) || slices.Contains(olderFields, name) {
			phases.names, phases.kids = append(phases.names, name), append(phases.kids, n.kids[i])
			continue
		}
		if _, twice := other[name]; twice {
			w.errs.add(pointer(token(name)), &Error{Text: quote(name), Problem: "stands here twice", Repair: "keep one"})
			continue
		}
		if meant := meantField(name); meant != "" {
			w.errs.add(pointer(token(name)), &Error{Text: quote(name), Problem: "is not a known field about the network", Repair: meant})
			continue
		}
		if !slices.Contains(readByCaller, name) {
			w.hidden(pointer(token(name)), &n.kids[i])
		}
		other[name] = ""
		if kind := n.kids[i].kind; kind == stringNode || kind == numberNode || kind == boolNode {
			other[name] = n.kids[i].text
		}
	}
	layer := w.layer(&phases).Phases
	return layer, w.older
}

// hidden refuses phases' fields where nobody would read them.
func (w *walker) hidden(at jsontext.Pointer, n *node) {
	for i := range n.kids {
		below := at.AppendToken(strconv.Itoa(i))
		if n.kind == objectNode {
			name := n.names[i]
			below = at.AppendToken(name)
			if slices.Contains(phaseFields, name) || slices.Contains(olderFields, name) {
				w.errs.add(below, &Error{Text: quote(name), Problem: "stands deeper than policies are read", Repair: "move it to the top, or take it out"})
				continue
			}
		}
		w.hidden(below, &n.kids[i])
	}
}

// meantField says what to write instead of a field that looks like one about policies; "" for any other field.
func meantField(name string) string {
	plain := strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "", ".", "").Replace(name))
	for _, field := range slices.Concat(phaseFields, olderFields) {
		if distance(plain, strings.ReplaceAll(field, "_", "")) <= 2 {
			return "write " + field
		}
	}
	for _, part := range []string{"networkpolicy", "networkmode", "allowedhosts", "deniedhosts", "allowinternet"} {
		if strings.Contains(plain, part) {
			return "name the phases: " + strings.Join(phaseFields, ", ")
		}
	}
	return ""
}

// distance is how many bytes have to be inserted, removed or replaced to make b of a; more than 2 is 3.
func distance(a, b string) int {
	const limit = 3
	if len(a) > len(b)+limit || len(b) > len(a)+limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return min(row[len(b)], limit)
}

// Field is the name of a phase's field, in the present or in the older names.
func (p Phase) Field(older bool) string {
	if older {
		return wordOr(olderFields, int(p))
	}
	return wordOr(phaseFields, int(p))
}

// Over returns p with everything that below says where p says nothing.
func (p Params) Over(below Params) Params {
	out := Params{Layer: p.Layer, Older: p.Older || below.Older, Other: maps.Clone(below.Other)}
	for phase, value := range below.Layer {
		if out.Layer[phase] == nil {
			out.Layer[phase] = value
		}
	}
	if out.Other == nil {
		out.Other = map[string]string{}
	}
	maps.Copy(out.Other, p.Other)
	return out
}
