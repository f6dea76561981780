package componentflags

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"knarr/internal/flaghelp"
)

// An Idle flag is one of upstream's that does nothing here, so that a command line of
// upstream's program is one of ours. Default is upstream's, which gives its type; what
// else it may be is checked as upstream does only where Only says so.
type Idle struct {
	Name    string
	Default any
	// Why it does nothing.
	Why string
	// Only says that another value than the default asks for what is not there: an error.
	Only bool
}

// BindIdle declares the flags.
func BindIdle(f *pflag.FlagSet, all []Idle) {
	for _, i := range all {
		usage := "upstream's; changes nothing: " + i.Why
		if i.Only {
			usage = "upstream's; no `value` but the default: " + i.Why
		}
		switch d := i.Default.(type) {
		case bool:
			f.Bool(i.Name, d, usage)
		case int:
			f.Int(i.Name, d, usage)
		case string:
			f.String(i.Name, d, usage)
		case []string:
			f.StringSlice(i.Name, d, usage)
		case time.Duration:
			f.Duration(i.Name, d, usage)
		default:
			panic(fmt.Sprintf("flag %s: no type %T", i.Name, d))
		}
		flaghelp.In(f, i.Name, "Of upstream, without effect")
	}
}

// CheckIdle says which flags ask for what is not there, and logs once which others do
// nothing though they were given another value than the default.
func CheckIdle(f *pflag.FlagSet, all []Idle) error {
	var errs []error
	var idle []string
	for _, i := range all {
		switch one := f.Lookup(i.Name); {
		case one == nil || !one.Changed || one.Value.String() == one.DefValue:
		case i.Only:
			errs = append(errs, fmt.Errorf("--%s: %s", i.Name, i.Why))
		default:
			idle = append(idle, "--"+i.Name+": "+i.Why)
		}
	}
	if len(idle) > 0 {
		slices.Sort(idle)
		slog.Warn("these flags change nothing here", "flags", strings.Join(idle, "; "))
	}
	return errors.Join(errs...)
}

// WarnGates logs once which features are set to another value than their default and have
// no effect here.
func WarnGates(settings []string) {
	if len(settings) > 0 {
		slog.Warn("--feature-gates: these settings change nothing here", "gates", strings.Join(settings, ", "))
	}
}
