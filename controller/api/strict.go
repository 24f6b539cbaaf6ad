package api

import (
	"encoding/json"
	"errors"
	"fmt"

	"sluice/control"
)

// UnmarshalJSON reads strictly, see [control.Members].
func (a *Attach) UnmarshalJSON(data []byte) error {
	var v Attach
	err := fields(data, map[string]any{"container": &v.Container, "policy": &v.Policy, "phase": &v.Phase, "allow_weak": &v.AllowWeak,
		"workload": &v.Workload, "verify": &v.Verify})
	if err == nil {
		*a = v
	}
	return err
}

// UnmarshalJSON reads strictly, see [control.Members].
func (p *Phase) UnmarshalJSON(data []byte) error {
	var v Phase
	err := fields(data, map[string]any{"phase": &v.Phase, "generation": &v.Generation})
	if err == nil {
		*p = v
	}
	return err
}

// UnmarshalJSON reads strictly, see [control.Members].
func (p *Policy) UnmarshalJSON(data []byte) error {
	var v Policy
	err := fields(data, map[string]any{"policy": &v.Policy, "generation": &v.Generation})
	if err == nil {
		*p = v
	}
	return err
}

// UnmarshalJSON reads strictly, see [control.Members].
func (v *Verify) UnmarshalJSON(data []byte) error {
	var w Verify
	err := fields(data, map[string]any{"reach": &w.Reach, "quarantine": &w.Quarantine})
	if err == nil {
		*v = w
	}
	return err
}

// UnmarshalJSON reads strictly, see [control.Members].
func (n *NewNetwork) UnmarshalJSON(data []byte) error {
	var v NewNetwork
	err := fields(data, map[string]any{"name": &v.Name, "internal": &v.Internal, "ipv6": &v.IPv6, "policy": &v.Policy})
	if err == nil {
		*n = v
	}
	return err
}

// fields decodes the members of an object into the values of the same names.
func fields(data []byte, into map[string]any) error {
	return control.Members(data, func(key string, value json.RawMessage) error {
		field, ok := into[key]
		switch {
		case !ok:
			return fmt.Errorf("unknown field")
		case string(value) == "null":
			return errors.New("null: leave the field out")
		}
		return json.Unmarshal(value, field)
	})
}
