package containerruntime

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"knarr/internal/programs"
)

// A handler is a runtime beside the shim's own, which a pod asks for by a
// RuntimeClass.
type handler struct {
	name string
	// class is the RuntimeClass that is made once a node has it: the handler's name,
	// but for gVisor's, whose manual calls it otherwise.
	class string
	// runtimeType is containerd's name of its shim.
	runtimeType string
	// shim is the program that containerd starts for each pod, and binary what that one
	// runs. "": the shim does all of it.
	shim, binary string
	// annotations of pods that the runtime is to see; it has rules of its own for them.
	annotations []string
}

// runcShim drives every program with runc's command line. The embedded shim cannot: it
// has libcontainer in its own process and runs no such program.
const runcShim, runcType = formerShim, "io.containerd.runc.v2"

// handlers are looked for under the names, of handlers and programs, that k3s knows; the
// last two it does not know.
var handlers = []handler{
	{name: "crun", runtimeType: runcType, shim: runcShim, binary: "crun"},
	{name: "nvidia", runtimeType: runcType, shim: runcShim, binary: "nvidia-container-runtime"},
	{name: "nvidia-cdi", runtimeType: runcType, shim: runcShim, binary: "nvidia-container-runtime.cdi"},
	{name: "nvidia-experimental", runtimeType: runcType, shim: runcShim, binary: "nvidia-container-runtime-experimental"},
	{name: "lunatic", runtimeType: "io.containerd.lunatic.v1", shim: "containerd-shim-lunatic-v1"},
	{name: "slight", runtimeType: "io.containerd.slight.v1", shim: "containerd-shim-slight-v1"},
	{name: "spin", runtimeType: "io.containerd.spin.v2", shim: "containerd-shim-spin-v2"},
	{name: "wasmedge", runtimeType: "io.containerd.wasmedge.v1", shim: "containerd-shim-wasmedge-v1"},
	{name: "wasmer", runtimeType: "io.containerd.wasmer.v1", shim: "containerd-shim-wasmer-v1"},
	{name: "wasmtime", runtimeType: "io.containerd.wasmtime.v1", shim: "containerd-shim-wasmtime-v1"},
	{name: "wws", runtimeType: "io.containerd.wws.v1", shim: "containerd-shim-wws-v1"},
	{name: "runsc", class: "gvisor", runtimeType: "io.containerd.runsc.v1", shim: "containerd-shim-runsc-v1", binary: "runsc"},
	{name: "kata", runtimeType: "io.containerd.kata.v2", shim: "containerd-shim-kata-v2", annotations: []string{"io.katacontainers.*"}},
}

// builtIn is the handler of the shim's own runtime, by which a Handler has its settings too.
const builtIn = "runc"

// A Handler is a runtime that is offered under a name of the administrator's. No RuntimeClass
// is made for it.
type Handler struct {
	// Name is what a RuntimeClass has as its handler.
	Name string
	// Program is the path of a program with runc's command line, which the machine's
	// containerd-shim-runc-v2 drives, or of a shim by the name containerd-shim-X-vN; or
	// runc, for the built-in runtime.
	Program string
}

// shimName is how shims are called; what is between is what containerd calls their runtimes.
var shimName = regexp.MustCompile(`^containerd-shim-([a-z0-9]+)-(v[0-9]+)$`)

// resolve says how containerd is to run it. The built-in runtime's has no shim of its own.
func (h Handler) resolve(dirs []string) (handler, error) {
	of := handler{name: h.Name, runtimeType: runcType}
	if h.Program == builtIn {
		return of, nil
	}
	if !filepath.IsAbs(h.Program) || find([]string{filepath.Dir(h.Program)}, filepath.Base(h.Program)) == "" {
		return of, fmt.Errorf("%q is neither %s nor the path of a program that can be executed", h.Program, builtIn)
	}
	if m := shimName.FindStringSubmatch(filepath.Base(h.Program)); m != nil && m[1] != builtIn {
		of.runtimeType, of.shim = "io.containerd."+m[1]+"."+m[2], h.Program
		return of, nil
	} else if m != nil {
		return of, fmt.Errorf("%s drives programs and is none: name the program", h.Program)
	}
	if of.shim, of.binary = find(dirs, runcShim), h.Program; of.shim == "" {
		return of, fmt.Errorf("%s is driven by %s, which is not in the search path: install containerd's, or name %s", h.Program, runcShim, builtIn)
	}
	return of, nil
}

// Check says why a Handler cannot be offered on this machine; nil if it can.
func (h Handler) Check() error {
	_, err := h.resolve(programDirs())
	return err
}

// named gives what was found and what the administrator names, which wins.
func named(found []handler, names []Handler, dirs []string) ([]handler, error) {
	for _, h := range names {
		of, err := h.resolve(dirs)
		if err != nil {
			return nil, fmt.Errorf("handler %s: %w", h.Name, err)
		}
		found = append(slices.DeleteFunc(found, func(other handler) bool { return other.name == h.Name }), of)
	}
	return found, nil
}

// RuntimeClass is the name of the RuntimeClass by which pods ask for a handler that a
// runtime here may have found; "" for any other.
func RuntimeClass(of string) string {
	for _, h := range handlers {
		if h.name == of {
			if h.class != "" {
				return h.class
			}
			return h.name
		}
	}
	return ""
}

// programDirs are searched for runtimes: the search path, then where their operators and
// installers put them.
func programDirs() []string {
	dirs := append(filepath.SplitList(os.Getenv("PATH")),
		"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin",
		"/usr/local/nvidia/toolkit", "/opt/kwasm/bin", "/opt/kata/bin")
	return slices.DeleteFunc(dirs, func(dir string) bool { return !filepath.IsAbs(dir) })
}

// find gives the path of a program in the first directory that has it; "" if none does.
// The embedded shim, which also goes by another's name, is none.
func find(dirs []string, program string) string {
	for _, dir := range dirs {
		path := filepath.Join(dir, program)
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			continue
		}
		if real, err := filepath.EvalSymlinks(path); err == nil && filepath.Base(real) != programs.Verb {
			return path
		}
	}
	return ""
}

// findHandlers gives those whose programs are all there, by their paths.
func findHandlers(dirs []string, log *slog.Logger) (found []handler) {
	for _, h := range handlers {
		shim, binary := find(dirs, h.shim), ""
		if h.binary != "" {
			binary = find(dirs, h.binary)
		}
		switch {
		case shim != "" && (binary != "" || h.binary == ""):
			log.Info("pods can ask for another runtime by RuntimeClass", "class", RuntimeClass(h.name), "handler", h.name, "shim", shim, "program", binary)
			h.shim, h.binary = shim, binary
			found = append(found, h)
		case binary != "":
			log.Info("a runtime is here without the program that drives it; with that in the search path pods can ask for it", "runtime", binary, "missing", h.shim)
		}
	}
	return found
}

// settings are what containerd is told of a handler.
func (h handler) settings(c Config) map[string]any {
	of := map[string]any{"runtime_type": h.runtimeType, "runtime_path": h.shim, "sandboxer": "podsandbox"}
	if h.runtimeType == runcType {
		of["options"] = map[string]any{"BinaryName": h.binary, "Root": filepath.Join(c.State, h.name), "SystemdCgroup": c.SystemdCgroup}
	}
	if len(h.annotations) > 0 {
		of["pod_annotations"] = h.annotations
		// A virtual machine has no use for the devices of its host.
		of["privileged_without_host_devices"] = true
	}
	return of
}

// runtimes are what containerd is told of all of them.
func runtimes(c Config, h host) map[string]any {
	own := map[string]any{
		"runtime_type": runcType,
		"runtime_path": h.verb,
		"sandboxer":    "podsandbox",
		"options": map[string]any{
			// For shims of a version before, which have one in the pods
			// that they keep. This one has no use for it.
			"BinaryName":    filepath.Join(c.Programs, "runc"),
			"Root":          runcRoot(c),
			"SystemdCgroup": c.SystemdCgroup,
		},
	}
	all := map[string]any{builtIn: own}
	for _, other := range h.handlers {
		if other.shim == "" {
			all[other.name] = own
		} else {
			all[other.name] = other.settings(c)
		}
	}
	return all
}
