package features

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"knarr/internal/nearest"
)

// known are upstream's features of this version, a line each: name, default, stage, and
// "locked" where the default is the only choice. test/conformance compares them with
// upstream's registry.
//
//go:embed gates.txt
var known string

// A Gate is what upstream says of one feature.
type Gate struct {
	Default, Locked bool
	// Stage is Alpha, Beta, GA or Deprecated.
	Stage string
}

// all are the gates that set those of one stage.
var all = map[string]string{"AllAlpha": "Alpha", "AllBeta": "Beta"}

// Gates are upstream's of this version, by name.
var Gates = sync.OnceValue(func() map[string]Gate {
	gates := map[string]Gate{}
	for line := range strings.Lines(known) {
		f := strings.Fields(line)
		gates[f[0]] = Gate{Default: f[1] == "true", Stage: f[2], Locked: len(f) == 4}
	}
	for name := range all {
		gates[name] = Gate{Stage: "Alpha"}
	}
	return gates
})

// Parse reads settings of the form name=bool as upstream's programs do, and checks them.
// The last one of a name counts.
func Parse(asked []string) (Set, error) {
	s := Set{}
	for _, a := range asked {
		name, value, ok := strings.Cut(strings.TrimSpace(a), "=")
		component, of, found := strings.Cut(name, ":")
		if found && component != "kube" {
			return nil, fmt.Errorf("component not registered: %s", component)
		}
		if found {
			name = of
		}
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		if !ok {
			return nil, fmt.Errorf("missing bool value for %s", name)
		}
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("invalid value of %s=%s, err: %w", name, value, err)
		}
		s[name] = on
	}
	return s, s.Check()
}

// Check says which name is not upstream's, or cannot be set so.
func (s Set) Check() error {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		switch g, ok := Gates()[name]; {
		case !ok:
			return fmt.Errorf("unrecognized feature gate: %s%s", name, nearest.Hint(name, slices.Sorted(maps.Keys(Gates()))))
		case g.Locked && g.Default != s[name]:
			return fmt.Errorf("cannot set feature gate %v to %v, feature is locked to %v", name, s[name], g.Default)
		}
	}
	return nil
}

// Enabled says whether a feature is on: as it is set itself, as all of its stage are, or
// by default.
func (s Set) Enabled(name string) bool {
	if on, ok := s[name]; ok {
		return on
	}
	g := Gates()[name]
	for wide, stage := range all {
		if on, ok := s[wide]; ok && stage == g.Stage && !g.Locked {
			return on
		}
	}
	return g.Default
}

// Idle are the settings that ask for something else than the default, of features that are
// not among those that act: they change nothing. They are sorted, and of the form
// name=bool.
func (s Set) Idle(acting ...string) (settings []string) {
	for name, on := range s {
		if on != Gates()[name].Default && !slices.Contains(acting, name) {
			settings = append(settings, fmt.Sprintf("%s=%v", name, on))
		}
	}
	slices.Sort(settings)
	return settings
}
