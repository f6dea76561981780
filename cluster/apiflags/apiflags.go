// Package apiflags is the flags of an API server that are the same whether it
// runs alone or with everything else, where they are given as
// --kube-apiserver-arg. It reads the files they name.
package apiflags

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/storage/encryption"
)

// Flags are what was asked for.
type Flags struct {
	encryptionFile   string
	reloadEncryption bool
	enable, disable  []string

	keys *encryption.Keys
}

// Bind declares the flags with upstream's names.
func (a *Flags) Bind(f *pflag.FlagSet) {
	f.StringVar(&a.encryptionFile, "encryption-provider-config", "", "`file` that says what is encrypted at rest, and how")
	f.BoolVar(&a.reloadEncryption, "encryption-provider-config-automatic-reload", false, "follow changes of that file")
	f.StringSliceVar(&a.enable, "enable-admission-plugins", nil, "admission `plugins` that run besides those on by default")
	f.StringSliceVar(&a.disable, "disable-admission-plugins", nil, "admission `plugins` that do not run though they are on by default")
}

// Parse takes settings of the form key=value, and reads the files they name.
func Parse(settings []string) (*Flags, error) {
	a := &Flags{}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	a.Bind(f)
	for _, s := range settings {
		name, value, ok := strings.Cut(strings.TrimLeft(s, "-"), "=")
		if !ok {
			return nil, fmt.Errorf("%q is not of the form key=value", s)
		}
		if f.Lookup(name) == nil {
			var names []string
			f.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
			return nil, fmt.Errorf("there is no %q; there are %s", name, strings.Join(names, ", "))
		}
		if err := f.Set(name, value); err != nil {
			return nil, err
		}
	}
	return a, a.Load()
}

// Load reads the files that the flags name.
func (a *Flags) Load() (err error) {
	if err := admission.Check(a.enable, a.disable); err != nil {
		return err
	}
	switch {
	case a.encryptionFile != "":
		if a.keys, err = encryption.Load(a.encryptionFile); err != nil {
			return fmt.Errorf("--encryption-provider-config: %w", err)
		}
	case a.reloadEncryption:
		return errors.New("--encryption-provider-config-automatic-reload: name the file with --encryption-provider-config")
	}
	return nil
}

// Apply completes an API server's Config with what was loaded.
func (a *Flags) Apply(c *apiserver.Config) {
	c.Encryption, c.ReloadEncryption = a.keys, a.reloadEncryption
	c.EnableAdmission, c.DisableAdmission = a.enable, a.disable
}
