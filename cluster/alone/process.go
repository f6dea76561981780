package alone

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"knarr/cluster/componentflags"
	"knarr/internal/flaghelp"
	"knarr/internal/version"
)

// A Process is a component with its flags.
type Process struct {
	program
	f         *pflag.FlagSet
	format    string
	verbosity int
	version   string
}

// New binds the component's flags to f, and upstream's of every program; parse them, then
// Run. As upstream's, they may be written with _ in place of -.
func (c Component) New(f *pflag.FlagSet) *Process {
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	p := &Process{program: c.new(), f: f}
	p.flags(f)
	flaghelp.Group(f, "Flags")
	f.StringVar(&p.format, "logging-format", "text", "`format` of the log: text or json")
	flaghelp.Values(f, "logging-format", "text", "json")
	f.IntVarP(&p.verbosity, "v", "v", 0, "`level` of logging: 4 and above logs more")
	componentflags.BindIdle(f, idleLogging)
	f.StringVar(&p.version, "version", "false", "print the version of Kubernetes and end")
	f.Lookup("version").NoOptDefVal = "true"
	flaghelp.Values(f, "version", "true", "raw", "false")
	return p
}

const (
	oneStream  = "all of the log goes to one stream, at once"
	oneVerbose = "a level is that of all files"
)

// idleLogging are upstream's flags of logging that do nothing here.
var idleLogging = []componentflags.Idle{
	{Name: "log-flush-frequency", Default: 5 * time.Second, Why: oneStream},
	{Name: "log-json-info-buffer-size", Default: "0", Why: oneStream},
	{Name: "log-json-split-stream", Default: false, Why: oneStream},
	{Name: "log-text-info-buffer-size", Default: "0", Why: oneStream},
	{Name: "log-text-split-stream", Default: false, Why: oneStream},
	{Name: "vmodule", Default: "", Why: oneVerbose},
}

// Logging is the format of the log that the flags ask for, and whether to log more.
func (p *Process) Logging() (format string, more bool, err error) {
	if p.format != "text" && p.format != "json" {
		return "", false, fmt.Errorf("--logging-format: Unsupported log format: %q", p.format)
	}
	return p.format, Verbose(p.verbosity), nil
}

// Verbose says whether a level of upstream's is one that logs more here.
func Verbose(level int) bool { return level >= 4 }

// A Log is how a program changes the log of its process.
type Log struct {
	// FromFile has it be as a configuration file says where flags say nothing: in a format, ""
	// if the file names none, and of a level, nil if it names none.
	FromFile func(format string, verbosity *int)
	// Level sets how much is logged.
	Level func(verbosity int)
}

// LogBy hands the log to a program that may change it.
func (p *Process) LogBy(l Log) {
	if k, ok := p.program.(*kubeletProgram); ok {
		k.log = l
	}
}

// Run blocks until ctx ends.
func (p *Process) Run(ctx context.Context) error {
	if p.version != "false" {
		_, err := fmt.Println("Kubernetes " + version.Kubernetes)
		return err
	}
	if err := componentflags.CheckIdle(p.f, idleLogging); err != nil {
		return err
	}
	return p.run(ctx)
}
