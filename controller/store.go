package controller

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sluice/controller/api"
	"sluice/policy"
)

// record is what is kept of a container for a controller that comes after this one.
type record struct {
	ID         string       `json:"id"`
	Name       string       `json:"name"`
	State      api.State    `json:"state"`
	Problem    string       `json:"problem,omitempty"`
	Phase      policy.Phase `json:"phase"`
	Generation uint64       `json:"generation"`
	// PoliciesFile has the policies of all phases. They may be long, so a switch does not write them.
	PoliciesFile string `json:"policies"`
	AllowWeak    bool   `json:"allow_weak,omitempty"`
	// Pending is set while a change is under way: phase and generation are what it leads to, and what is in force is
	// the old or the new. Whoever finds it makes it the new.
	Pending bool `json:"pending,omitempty"`
	// Started, Sandbox and Namespace are those of the run that was looked after.
	Started   string `json:"started"`
	Sandbox   string `json:"sandbox"`
	Namespace string `json:"namespace"`

	// Workload is the container that all is about, if that is not the attached one.
	Workload workload `json:"workload,omitzero"`
	// Paused is set if the container was paused because nothing else could hold it.
	Paused bool `json:"paused,omitempty"`

	set *policySet
}

// workload is a container that shares the network of an attached one.
type workload struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// store keeps records in a directory: for each container ID.json, and the policies that it names. Files are replaced
// whole. They are not synced: the directory is gone with the machine's power, as all containers' networks are.
type store struct{ dir string }

func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the state: %w", err)
	}
	// The directory may have been there; policies can hold names that are nobody's business.
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the state: %w", err)
	}
	return &store{dir}, nil
}

const recordSuffix, policiesSuffix = ".json", ".policies"

// save writes a record, and its policies if there is no file of them yet.
func (s *store) save(r *record) error {
	name := r.ID + "." + hex.EncodeToString(r.set.digest[:8]) + policiesSuffix
	if name != r.PoliciesFile {
		// Policies of one digest may be spelt in different ways, of which the first that came is kept.
		if err := s.write(name, r.set.phases); err != nil {
			return err
		}
	}
	old := r.PoliciesFile
	r.PoliciesFile = name
	if err := s.write(r.ID+recordSuffix, r); err != nil {
		r.PoliciesFile = old
		return err
	}
	if old != "" && old != name {
		_ = os.Remove(filepath.Join(s.dir, old)) // nothing names it any more; load removes what is left
	}
	return nil
}

func (s *store) write(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// remove forgets a container.
func (s *store) remove(id string) error {
	files, err := filepath.Glob(filepath.Join(s.dir, id+".*"))
	if err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	var errs []error
	for _, f := range files {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove state: %w", err))
		}
	}
	return errors.Join(errs...)
}

// load reads all records. What a record that cannot be read was about is still in force in the kernel, and must not be
// taken for nobody's: it is in broken, by the container's id.
func (s *store) load() (all []record, broken map[string]error, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read state: %w", err)
	}
	broken = map[string]error{}
	used := map[string]bool{}
	for _, e := range entries {
		id, found := strings.CutSuffix(e.Name(), recordSuffix)
		if !found {
			continue
		}
		r, err := s.read(id)
		if err != nil {
			broken[id] = fmt.Errorf("read state: %w", err)
			continue
		}
		used[r.PoliciesFile] = true
		all = append(all, r)
	}
	for _, e := range entries {
		id, _, _ := strings.Cut(e.Name(), ".")
		if !strings.HasSuffix(e.Name(), recordSuffix) && !used[e.Name()] && broken[id] == nil {
			_ = os.Remove(filepath.Join(s.dir, e.Name())) // half written, or replaced
		}
	}
	return all, broken, nil
}

func (s *store) read(id string) (r record, err error) {
	path := filepath.Join(s.dir, id+recordSuffix)
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	if r.ID != id || r.PoliciesFile != filepath.Base(r.PoliciesFile) {
		return r, fmt.Errorf("%s is not the record of its container", path)
	}
	policies := filepath.Join(s.dir, r.PoliciesFile)
	text, err = os.ReadFile(policies)
	if err != nil {
		return r, err
	}
	phases, err := policy.ParsePhases(text)
	if err != nil {
		return r, fmt.Errorf("%s: %w", policies, err)
	}
	r.set = newPolicySet(phases)
	return r, nil
}
