// Package componentflags is what the flags of all components have in common: they are set
// by key=value of a server's --kube-…-arg too, and some name upstream's configuration file.
// It reads such files.
package componentflags

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// Set sets the flags that bind declares by settings of the form key=value. elsewhere says
// of flags which a server does not take what they are instead, as in "is the cluster's".
func Set(bind func(*pflag.FlagSet), settings []string, elsewhere map[string]string) error {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	bind(f)
	for _, s := range settings {
		name, value, ok := strings.Cut(strings.TrimLeft(s, "-"), "=")
		if !ok {
			return fmt.Errorf("%q is not of the form key=value", s)
		}
		if why := elsewhere[name]; why != "" {
			return fmt.Errorf("%s %s", name, why)
		}
		if f.Lookup(name) == nil {
			return fmt.Errorf("there is no %q; there are %s", name, strings.Join(Keys(bind, elsewhere), ", "))
		}
		if err := f.Set(name, value); err != nil {
			return err
		}
	}
	return nil
}

// Keys are what Set takes, sorted.
func Keys(bind func(*pflag.FlagSet), elsewhere map[string]string) (names []string) {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	bind(f)
	f.VisitAll(func(one *pflag.Flag) {
		if elsewhere[one.Name] == "" {
			names = append(names, one.Name)
		}
	})
	slices.Sort(names)
	return names
}

// ReadConfig reads the file that --config names into an object of upstream's, strictly.
// kind and apiVersion are those of the object, once it is read.
func ReadConfig(file, wantKind, wantVersion string, into any, kind, apiVersion *string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if err := yaml.UnmarshalStrict(b, into); err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	if *kind != wantKind || *apiVersion != wantVersion {
		return fmt.Errorf("--config: %s: no kind %q of version %q, but %q of %q", file, wantKind, wantVersion, *kind, *apiVersion)
	}
	return nil
}
