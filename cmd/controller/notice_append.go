package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"sluice/policy"
	"sluice/policy/pyjson"
)

// inputForm is what an agent's input is.
type inputForm string

// The forms of an input, as --as names them.
const (
	rolloutForm    inputForm = "rollout"     // a JSON object with prompt or messages
	promptForm     inputForm = "prompt"      // a text
	jsonPromptForm inputForm = "json-prompt" // a text that is the JSON of messages; another text is taken as it is
	messagesForm   inputForm = "messages"    // a JSON list of messages, whose content is a text or a list of parts
)

var inputForms = []inputForm{rolloutForm, promptForm, jsonPromptForm, messagesForm}

// Set implements pflag.Value.
func (f *inputForm) Set(text string) error {
	for _, known := range inputForms {
		if text == string(known) {
			*f = known
			return nil
		}
	}
	return fmt.Errorf("write %s", joinWords(inputForms))
}

func (f *inputForm) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *inputForm) Type() string { return "FORM" }

// appendNotice reads an input and returns a copy with the notice behind it, and where in it that is.
func appendNotice(cmd *cobra.Command, name string, form inputForm, notice string) (copied string, surfaces []string, err error) {
	data, err := readAll(cmd, name, pyjson.MaxBytes)
	if err != nil {
		return "", nil, err
	}
	input, member := data, ""
	switch form {
	case promptForm, jsonPromptForm:
		if !utf8.Valid(data) {
			return "", nil, fmt.Errorf("%s: is no text: it is not UTF-8", display(name))
		}
		input, err = json.Marshal(map[string]string{"prompt": string(data)})
		member = "prompt"
	case messagesForm:
		// What is no list is refused behind this pointer; a second member would need a comma, which no list has outside.
		if !json.Valid(data) {
			return "", nil, fmt.Errorf("%s: is no JSON: write a list of messages", display(name))
		}
		input = append(append([]byte(`{"messages":`), data...), '}')
		member = "messages"
	}
	if err != nil {
		return "", nil, err
	}
	text, surfaces, err := policy.AppendNotice(input, notice, form == jsonPromptForm)
	if err != nil && form == rolloutForm {
		return "", nil, fmt.Errorf("%s: %w; for a text give --as prompt, for a list --as messages", display(name), err)
	}
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", display(name), err)
	}
	if member == "" {
		return string(text), surfaces, nil
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return "", nil, fmt.Errorf("%s: %w", display(name), err)
	}
	if member == "messages" {
		if slices.Contains(surfaces, "prompt") { // in place of the messages that are not there
			return "", nil, fmt.Errorf("%s: has no message: write a list of messages", display(name))
		}
		return string(parts[member]), surfaces, nil
	}
	var prompt string
	if err := json.Unmarshal(parts[member], &prompt); err != nil {
		return "", nil, fmt.Errorf("%s: %w", display(name), err)
	}
	return prompt, surfaces, nil
}

var errFormAlone = errors.New("--as belongs to --append")
