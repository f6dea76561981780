package componentflags

import (
	"fmt"

	"github.com/spf13/pflag"

	"knarr/internal/features"
)

// Gates is the flag of upstream's features: all that are known may be set, and some act.
type Gates struct {
	asked  []string
	set    features.Set
	acting []string
}

// Bind declares the flag. Acting are the features that can be changed here, about which
// usage says more.
func (g *Gates) Bind(f *pflag.FlagSet, usage string, acting ...string) {
	g.acting = acting
	text := "`features` as name=true or name=false"
	if usage != "" {
		text += ": " + usage
	}
	f.StringSliceVar(&g.asked, "feature-gates", nil, text)
}

// Validate reads the settings, and logs which of them change nothing.
func (g *Gates) Validate() (err error) {
	if g.set, err = features.Parse(g.asked); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	WarnGates(g.set.Idle(g.acting...))
	return nil
}

// Enabled says whether a feature is on, once Validate was called.
func (g *Gates) Enabled(name string) bool { return g.set.Enabled(name) }

// On are the features that act and are on.
func (g *Gates) On() features.Set {
	on := features.Set{}
	for _, name := range g.acting {
		on[name] = g.set.Enabled(name)
	}
	return on
}
