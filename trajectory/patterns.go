package trajectory

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"sluice/policy/pyjson"
)

// The patterns are those of AgentCompass 1.0.1 (analyzers/basic/network_op_analyzer.py), in its order, with its names
// for what they find. They are matched against text in the [plain] form.
var (
	shellTool  = regexp.MustCompile(`^(?:bash|sh|bash_command)\n?\z`)
	clientTool = regexp.MustCompile(`^(?:curl|wget|fetch|download|http_request)\n?\z`)

	operations = []struct {
		label   string
		command *regexp.Regexp
	}{
		{"pip install", words(`pip\s+install`)},
		{"pip3 install", words(`pip3?\s+install`)},
		{"apt-get install", words(`apt(?:-get)?\s+install`)},
		{"apk add", words(`apk\s+add`)},
		{"yum install", words(`yum\s+install`)},
		{"dnf install", words(`dnf\s+install`)},
		{"conda install", words(`conda\s+install`)},
		{"npm install", words(`npm\s+install`)},
		{"yarn add", words(`yarn\s+add`)},
		{"pnpm add", words(`pnpm\s+add`)},
		{"gem install", words(`gem\s+install`)},
		{"cargo install", words(`cargo\s+install`)},
		{"go get|install", words(`go\s+(?:get|install)`)},
		{"curl", words(`curl`)},
		{"wget", words(`wget`)},
		{"git clone", words(`git\s+clone`)},
		{"svn checkout|co", words(`svn\s+(?:checkout|co)`)},
		{"gh repo|api|browse", words(`gh\s+(?:repo|api|browse)`)},
		{"scp", words(`scp`)},
		{"rsync", words(`rsync`)},
		{"sftp", words(`sftp`)},
		{"ping", words(`ping`)},
		{"dig", words(`dig`)},
		{"nslookup", words(`nslookup`)},
	}
)

func words(pattern string) *regexp.Regexp { return regexp.MustCompile(`\b` + pattern + `\b`) }

// networkUse reports whether a tool call looks like an operation on the network, and which one.
func networkUse(name, args string) (label string, ok bool) {
	tool := plain(name)
	if shellTool.MatchString(tool) {
		text := plain(name + " " + args)
		for _, o := range operations {
			if o.command.MatchString(text) {
				return o.label, true
			}
		}
	}
	if clientTool.MatchString(tool) {
		return strings.ToLower(name), true
	}
	return "", false
}

// Characters that stand in the [plain] form for others, and in no pattern.
const (
	otherWord = 'z'
	otherSign = ','
)

// plain returns text in a form in which Go's ASCII patterns find what Python's Unicode patterns, with letter case
// ignored, find in the text: lower case, with a letter for other letters and digits, a space for other white space, a
// sign for everything else.
func plain(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	for _, r := range text {
		switch {
		case 'A' <= r && r <= 'Z':
			r += 'a' - 'A'
		case 0x1c <= r && r <= 0x1f || r == '\v':
			r = ' '
		case r < utf8.RuneSelf:
		case r == 'ı' || r == 'İ':
			r = 'i'
		case r == 'ſ':
			r = 's'
		case unicode.SimpleFold(r) == 'K': // the Kelvin sign
			r = 'k'
		case pyjson.IsSpace(r):
			r = ' '
		case pyjson.IsWord(r):
			r = otherWord
		default:
			r = otherSign
		}
		b.WriteRune(r)
	}
	return b.String()
}
