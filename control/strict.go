package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"
)

// UnmarshalJSON reads a spec strictly: encoding/json alone lets repeated keys and keys in another case through, and
// either could make a reader of the request see another policy than the one that is set.
func (s *SessionSpec) UnmarshalJSON(data []byte) error {
	var spec SessionSpec
	fields := map[string]any{
		"container":    &spec.Container,
		"container_id": &spec.ContainerID,
		"generation":   &spec.Generation,
		"phase":        &spec.Phase,
		"upstreams":    &spec.Upstreams,
		"never":        &spec.Never,
		"no_route":     &spec.NoRoute,
	}
	names := map[string]*map[string][]string{"hosts": &spec.Hosts, "open": &spec.Open}
	err := Members(data, func(key string, value json.RawMessage) error {
		if key == "policies" {
			spec.Policies = map[string]json.RawMessage{}
			return Members(value, func(phase string, policy json.RawMessage) error {
				spec.Policies[phase] = policy
				return nil
			})
		}
		if to, ok := names[key]; ok {
			*to = map[string][]string{}
			return Members(value, func(name string, value json.RawMessage) error {
				var addresses []string
				if err := json.Unmarshal(value, &addresses); err != nil {
					return err
				}
				(*to)[name] = addresses
				return nil
			})
		}
		field, ok := fields[key]
		if !ok {
			return fmt.Errorf("unknown field")
		}
		if string(value) == "null" {
			return fmt.Errorf("null: leave the field out to keep what the session has")
		}
		return json.Unmarshal(value, field)
	})
	if err != nil {
		return err
	}
	*s = spec
	return nil
}

// Members calls f for every member of the one JSON object in data, in order, and refuses a repeated key. Errors of f
// are given the key.
func Members(data []byte, f func(key string, value json.RawMessage) error) error {
	if !utf8.Valid(data) {
		return fmt.Errorf("not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	start, err := dec.Token()
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if start != json.Delim('{') {
		return fmt.Errorf("want a JSON object, got %v", start)
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return fmt.Errorf("not JSON: %w", err)
		}
		key := token.(string) // the decoder has checked that a key is a string
		if seen[key] {
			return fmt.Errorf("%q: repeated", key)
		}
		seen[key] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return fmt.Errorf("%q: not JSON: %w", key, err)
		}
		if err := f(key, value); err != nil {
			return fmt.Errorf("%q: %w", key, err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("bytes after the JSON object")
	}
	return nil
}
