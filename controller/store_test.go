package controller

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/controller/api"
	"sluice/policy"
)

func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := openStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := record{ID: id1, Name: "web", State: api.Attached, Phase: policy.Run, Generation: 3, AllowWeak: true,
		Started: "now", Sandbox: "/s", Namespace: "4:1", set: newPolicySet(parse(t, task))}
	if err := s.save(&r); err != nil {
		t.Fatal(err)
	}
	first := r.PoliciesFile
	r.Phase, r.Generation = policy.Evaluation, 4
	if err := s.save(&r); err != nil {
		t.Fatal(err)
	}
	if r.PoliciesFile != first {
		t.Error("a switch wrote the policies anew")
	}
	r.set = newPolicySet(parse(t, strings.Replace(task, "judge", "other", 1)))
	if err := s.save(&r); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, id2+recordSuffix+".new"), []byte("{"), 0o600); err != nil { // half written
		t.Fatal(err)
	}

	again, err := openStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	all, broken, err := again.load()
	if err != nil || len(broken) > 0 || len(all) != 1 {
		t.Fatalf("loaded %v, broken %v, error %v", all, broken, err)
	}
	if got := all[0]; got.set.digest != r.set.digest || got.Generation != 4 || got.Phase != policy.Evaluation || !got.AllowWeak || got.Name != "web" {
		t.Errorf("loaded %+v", got)
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if !e.IsDir() && e.Name() != id1+recordSuffix && e.Name() != r.PoliciesFile {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestStoreRefusesWhatItDidNotWrite(t *testing.T) {
	for name, text := range map[string]string{
		"other-container": `{"id":"` + id2 + `","phase":"run","policies":"p"}`,
		"other-directory": `{"id":"` + id1 + `","phase":"run","policies":"../p"}`,
		"no-policies":     `{"id":"` + id1 + `","phase":"run","policies":"gone"}`,
		"no-phase":        `{"id":"` + id1 + `","phase":"later","policies":"p"}`,
		"bad-policies":    `{"id":"` + id1 + `","phase":"run","policies":"bad"}`,
		"cut-off":         `{"id":"` + id1,
	} {
		t.Run(name, func(t *testing.T) {
			s, err := openStore(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{id1 + recordSuffix: text, "p": task, "bad": `{"run_network_policy":"Public"}`} {
				if err := os.WriteFile(filepath.Join(s.dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			all, broken, err := s.load()
			if err != nil || len(all) > 0 || broken[id1] == nil {
				t.Errorf("loaded %v, broken %v, error %v", all, broken, err)
			}
		})
	}
}
