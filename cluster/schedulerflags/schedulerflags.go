// Package schedulerflags is what may be said of the scheduler, with upstream's names: as
// flags of `knarr scheduler`, by --kube-scheduler-arg of a server, or in upstream's
// configuration file, which it reads.
package schedulerflags

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"knarr/cluster/componentflags"
	"knarr/controlplane/scheduler"
)

// Flags are those that are the same whether the scheduler runs alone or with everything
// else.
type Flags struct {
	// Configuration is what the file says; empty without one.
	Configuration Configuration

	// Election is who schedules, Connection how the API server is reached.
	Election   componentflags.Election
	Connection componentflags.Connection

	file string
	f    *pflag.FlagSet
}

// idle are upstream's flags that do nothing here.
var idle = []componentflags.Idle{
	{Name: "pod-max-in-unschedulable-pods-duration", Default: 5 * time.Minute, Why: "a pod waits five minutes at most, or for what may help it"},
	{Name: "write-config-to", Default: "", Why: "the configuration is not written; start the program and read /configz", Only: true},
}

// ofServer are the flags of upstream's that a server has another way to say.
var ofServer = map[string]string{
	"bind-address":  "is of a port of its own; the scheduler's metrics are at the API server's /metrics",
	"secure-port":   "is of a port of its own; the scheduler's metrics are at the API server's /metrics",
	"feature-gates": "is the cluster's; use --kube-apiserver-arg feature-gates=",
	"leader-elect":  "is the cluster's; several servers take turns, one does not",
}

// Bind declares the flags.
func (s *Flags) Bind(f *pflag.FlagSet) {
	s.f = f
	s.Election.Bind(f, "kube-scheduler")
	s.Connection.Bind(f, 50, 100)
	componentflags.BindIdle(f, idle)
	f.StringVar(&s.file, "config", "", "`file` of a KubeSchedulerConfiguration")
}

// Parse takes settings of the form key=value, of a server, and reads the file they name.
func Parse(settings []string) (*Flags, error) {
	s := &Flags{}
	if err := componentflags.Set(s.Bind, settings, ofServer); err != nil {
		return nil, err
	}
	return s, errors.Join(s.load(true), s.Validate())
}

// Validate names what cannot be, and logs which flags do nothing.
func (s *Flags) Validate() error {
	return errors.Join(s.Election.Validate(), s.Connection.Validate(), componentflags.CheckIdle(s.f, idle))
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
func (s *Flags) Apply(cfg *scheduler.Config) {
	cfg.Names, cfg.Election = s.Configuration.names(), s.Election.Times
	cfg.QPS, cfg.Burst = s.Connection.Limits()
	if cfg.Kube != nil {
		s.Connection.Apply(cfg.Kube)
	}
}
