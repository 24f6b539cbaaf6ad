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

	operations = []operation{
		{"pip install", "pip", regexp.MustCompile(`^pip\s+install\b`)},
		{"pip3 install", "pip", regexp.MustCompile(`^pip3?\s+install\b`)},
		{"apt-get install", "apt", regexp.MustCompile(`^apt(?:-get)?\s+install\b`)},
		{"apk add", "apk", regexp.MustCompile(`^apk\s+add\b`)},
		{"yum install", "yum", regexp.MustCompile(`^yum\s+install\b`)},
		{"dnf install", "dnf", regexp.MustCompile(`^dnf\s+install\b`)},
		{"conda install", "conda", regexp.MustCompile(`^conda\s+install\b`)},
		{"npm install", "npm", regexp.MustCompile(`^npm\s+install\b`)},
		{"yarn add", "yarn", regexp.MustCompile(`^yarn\s+add\b`)},
		{"pnpm add", "pnpm", regexp.MustCompile(`^pnpm\s+add\b`)},
		{"gem install", "gem", regexp.MustCompile(`^gem\s+install\b`)},
		{"cargo install", "cargo", regexp.MustCompile(`^cargo\s+install\b`)},
		{"go get|install", "go", regexp.MustCompile(`^go\s+(?:get|install)\b`)},
		{"curl", "curl", regexp.MustCompile(`^curl\b`)},
		{"wget", "wget", regexp.MustCompile(`^wget\b`)},
		{"git clone", "git", regexp.MustCompile(`^git\s+clone\b`)},
		{"svn checkout|co", "svn", regexp.MustCompile(`^svn\s+(?:checkout|co)\b`)},
		{"gh repo|api|browse", "gh", regexp.MustCompile(`^gh\s+(?:repo|api|browse)\b`)},
		{"scp", "scp", regexp.MustCompile(`^scp\b`)},
		{"rsync", "rsync", regexp.MustCompile(`^rsync\b`)},
		{"sftp", "sftp", regexp.MustCompile(`^sftp\b`)},
		{"ping", "ping", regexp.MustCompile(`^ping\b`)},
		{"dig", "dig", regexp.MustCompile(`^dig\b`)},
		{"nslookup", "nslookup", regexp.MustCompile(`^nslookup\b`)},
	}
)

// operation is what stands for a use of the network.
type operation struct {
	label string
	// word is what every command begins with. It is looked for first: a trajectory may be very large, and a pattern that
	// is not anchored needs tens of nanoseconds for each of its bytes.
	word    string
	command *regexp.Regexp
}

// in reports whether there is one in a text in the [plain] form, as its pattern after a boundary of words would find it.
func (o operation) in(text string) bool {
	for at := 0; ; at++ {
		i := strings.Index(text[at:], o.word)
		if i < 0 {
			return false
		}
		at += i
		if (at == 0 || !isWord(text[at-1])) && o.command.MatchString(text[at:]) {
			return true
		}
	}
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z'
}

// networkUse reports whether a tool call looks like an operation on the network, and which one.
func networkUse(name, args string) (label string, ok bool) {
	tool := plain(name)
	if shellTool.MatchString(tool) {
		text := plain(name + " " + args)
		for _, o := range operations {
			if o.in(text) {
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
