package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"knarr/cluster/alone"
	"knarr/internal/flaghelp"
)

// runAlone runs one component by itself.
func runAlone(c alone.Component) bind {
	return func(f *pflag.FlagSet) runner {
		p := c.New(f)
		format := f.String("log-format", "text", "`format` of the log: text or json")
		flaghelp.Values(f, "log-format", "text", "json")
		debug := f.Bool("debug", false, "log more")
		flaghelp.Group(f, "Log")
		return func(ctx context.Context, _ []string) error {
			if *format != "text" && *format != "json" {
				return fmt.Errorf("--log-format: %q is neither text nor json", *format)
			}
			upstreams, more, err := p.Logging()
			if err != nil {
				return err
			}
			if f.Changed("logging-format") {
				*format = upstreams
			}
			more = more || *debug
			setLog(ctx, *format, more)
			p.LogBy(alone.Log{
				FromFile: func(name string, verbosity *int) {
					if name != "" && !f.Changed("logging-format") && !f.Changed("log-format") {
						*format = name
					}
					if verbosity != nil && !f.Changed("v") && !f.Changed("debug") {
						more = alone.Verbose(*verbosity)
					}
					logAs(*format, more)
				},
				Level: func(verbosity int) { logMore(alone.Verbose(verbosity)) },
			})
			return p.Run(ctx)
		}
	}
}
