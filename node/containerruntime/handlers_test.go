package containerruntime

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"knarr/internal/programs"
)

func TestFindHandlers(t *testing.T) {
	program := func(dir, name string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ours, first, second := t.TempDir(), t.TempDir(), t.TempDir()
	program(ours, programs.Verb)
	if err := nameShim(ours); err != nil {
		t.Fatal(err)
	}
	// crun is there, and the embedded shim by the name of the one that drives it.
	crun := program(second, "crun")
	dirs := []string{ours, first, second}
	if found := findHandlers(dirs, slog.Default()); len(found) != 0 {
		t.Errorf("the embedded shim is taken for one that runs crun: %+v", found)
	}

	shim := program(second, runcShim)
	program(first, "runsc") // whose shim is missing
	kata := program(first, "containerd-shim-kata-v2")
	if err := os.Mkdir(filepath.Join(first, "nvidia-container-runtime"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(first, "containerd-shim-spin-v2"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	found := findHandlers(dirs, slog.Default())
	if len(found) != 2 || found[0].name != "crun" || found[0].shim != shim || found[0].binary != crun ||
		found[1].name != "kata" || found[1].shim != kata || found[1].binary != "" {
		t.Errorf("found %+v, want crun and kata", found)
	}

	c := Config{State: "/s", Programs: ours}
	all := runtimes(c, host{verb: "/verb", handlers: found})
	if of := all["runc"].(map[string]any); of["runtime_path"] != "/verb" {
		t.Errorf("the own shim is not the default's: %v", of)
	}
	options := all["crun"].(map[string]any)["options"].(map[string]any)
	if options["BinaryName"] != crun || options["Root"] != "/s/crun" {
		t.Errorf("crun with %v", options)
	}
	if options["SystemdCgroup"] != false {
		t.Error("groups are made by systemd unasked")
	}
	c.SystemdCgroup = true
	for name, of := range runtimes(c, host{verb: "/verb", handlers: found}) {
		if options, has := of.(map[string]any)["options"].(map[string]any); has && options["SystemdCgroup"] != true {
			t.Errorf("%s does not make groups by systemd", name)
		}
	}
	if _, has := all["kata"].(map[string]any)["options"]; has {
		t.Error("kata's shim gets options that only runc's understands")
	}
}

// TestNamedHandlers: an administrator's handlers are beside what was found, and win.
func TestNamedHandlers(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{runcShim, "crun", "mine", "containerd-shim-mine-v2"} {
		if err := os.WriteFile(at(name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	found := findHandlers([]string{dir}, slog.Default())
	all, err := named(found, []Handler{{"alias", "runc"}, {"other", at("mine")}, {"shim", at("containerd-shim-mine-v2")}, {"crun", at("mine")}}, []string{dir})
	if err != nil || len(all) != 4 {
		t.Fatal(all, err)
	}
	of := runtimes(Config{State: "/s"}, host{verb: "/verb", handlers: all})
	for name, want := range map[string][3]string{ // type, shim, program
		"runc":  {runcType, "/verb", "runc"},
		"alias": {runcType, "/verb", "runc"},
		"other": {runcType, at(runcShim), at("mine")},
		"shim":  {"io.containerd.mine.v2", at("containerd-shim-mine-v2"), ""},
		"crun":  {runcType, at(runcShim), at("mine")},
	} {
		r := of[name].(map[string]any)
		program := ""
		if options, has := r["options"].(map[string]any); has {
			program = options["BinaryName"].(string)
		}
		if got := [3]string{r["runtime_type"].(string), r["runtime_path"].(string), program}; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for program, want := range map[string]string{
		"crun":           "is neither runc nor the path of a program",
		at("none"):       "is neither runc nor the path of a program",
		dir:              "is neither runc nor the path of a program",
		at(runcShim):     "drives programs and is none",
		at("mine") + " ": "is neither runc nor the path of a program",
	} {
		if _, err := named(nil, []Handler{{"h", program}}, []string{dir}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", program, err)
		}
	}
	if _, err := named(nil, []Handler{{"h", at("mine")}}, nil); err == nil || !strings.Contains(err.Error(), "which is not in the search path") {
		t.Error("without the shim:", err)
	}
}

func TestRuntimeClass(t *testing.T) {
	for name, want := range map[string]string{"crun": "crun", "runsc": "gvisor", "runc": "", "": "", "mine": ""} {
		if got := RuntimeClass(name); got != want {
			t.Errorf("class of %q: %q, want %q", name, got, want)
		}
	}
}
