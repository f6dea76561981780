// Package schedulerflags is what may be said of the scheduler, with upstream's names: as
// flags of `knarr scheduler`, by --kube-scheduler-arg of a server, or in upstream's
// configuration file, which it reads.
package schedulerflags

import (
	"github.com/spf13/pflag"

	"knarr/cluster/componentflags"
	"knarr/controlplane/scheduler"
)

// Flags are those that are the same whether the scheduler runs alone or with everything
// else.
type Flags struct {
	// Configuration is what the file says; empty without one.
	Configuration Configuration

	file string
}

// ofServer are the flags of upstream's that a server has another way to say.
var ofServer = map[string]string{
	"bind-address":  "is of a port of its own; the scheduler's metrics are at the API server's /metrics",
	"secure-port":   "is of a port of its own; the scheduler's metrics are at the API server's /metrics",
	"feature-gates": "cannot be changed here; remove it",
	"leader-elect":  "is the cluster's; several servers take turns, one does not",
}

// Bind declares the flags.
func (s *Flags) Bind(f *pflag.FlagSet) {
	f.StringVar(&s.file, "config", "", "`file` of a KubeSchedulerConfiguration")
}

// Parse takes settings of the form key=value, of a server, and reads the file they name.
func Parse(settings []string) (*Flags, error) {
	s := &Flags{}
	if err := componentflags.Set(s.Bind, settings, ofServer); err != nil {
		return nil, err
	}
	return s, s.load(true)
}

// Keys are what Parse knows.
func Keys() []string { return componentflags.Keys(new(Flags).Bind, ofServer) }

// Load reads the file that the flags name, of a scheduler that runs alone.
func (s *Flags) Load() error { return s.load(false) }

func (s *Flags) load(ofServer bool) error {
	if s.file == "" {
		return nil
	}
	return s.Configuration.read(s.file, ofServer)
}

// Apply completes a scheduler's Config.
func (s *Flags) Apply(cfg *scheduler.Config) { cfg.Names = s.Configuration.names() }
