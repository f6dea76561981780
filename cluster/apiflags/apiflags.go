// Package apiflags is the flags of an API server that are the same whether it
// runs alone or with everything else, where they are given as
// --kube-apiserver-arg. It reads the files they name.
package apiflags

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/cluster/componentflags"
	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/admission/plugin"
	"knarr/controlplane/apiserver/audit"
	"knarr/controlplane/apiserver/storage/encryption"
	"knarr/controlplane/apiserver/structured"
	"knarr/internal/features"
)

// Flags are what was asked for.
type Flags struct {
	encryptionFile   string
	reloadEncryption bool

	gates         []string
	runtimeConfig map[string]string
	on            features.Set
	also          []schema.GroupVersion

	enable, disable       []string
	profiling             bool
	admissionFile         string
	notReady, unreachable int64
	admission             plugin.Settings

	auditing auditing
	serving  serving
	authn    authentication
	authz    authorization
	set      *pflag.FlagSet

	keys  *encryption.Keys
	audit *audit.Policy
}

// Bind declares the flags with upstream's names.
func (a *Flags) Bind(f *pflag.FlagSet) {
	a.set = f
	a.authn.bind(f)
	a.authz.bind(f)
	a.serving.bind(f)
	f.StringVar(&a.encryptionFile, "encryption-provider-config", "", "`file` that says what is encrypted at rest, and how")
	f.BoolVar(&a.reloadEncryption, "encryption-provider-config-automatic-reload", false, "follow changes of that file")
	f.StringSliceVar(&a.gates, "feature-gates", nil, "`features` as name=true or name=false; those off by default that can be on: "+strings.Join(features.Settable, ", "))
	f.StringToStringVar(&a.runtimeConfig, "runtime-config", nil, "`versions` of APIs as group/version=true or false; those that are served only then: "+strings.Join(optionalVersions(), ", "))
	f.StringSliceVar(&a.enable, "enable-admission-plugins", nil, "admission `plugins` that run besides those on by default")
	f.StringSliceVar(&a.disable, "disable-admission-plugins", nil, "admission `plugins` that do not run though they are on by default")
	f.BoolVar(&a.profiling, "profiling", true, "serve profiles of this process under /debug/pprof")
	f.StringVar(&a.admissionFile, "admission-control-config-file", "", "`file` that says more to admission plugins")
	f.Int64Var(&a.notReady, "default-not-ready-toleration-seconds", 300, "`seconds` that pods stay on a node that is not ready, if they do not say")
	f.Int64Var(&a.unreachable, "default-unreachable-toleration-seconds", 300, "`seconds` that pods stay on a node that is unreachable, if they do not say")
	a.auditing.bind(f)
}

// Parse takes settings of the form key=value, and reads the files they name.
func Parse(settings []string) (*Flags, error) {
	a := &Flags{authn: authentication{bootstrap: true}} // a whole cluster's nodes may join with them
	if err := componentflags.Set(a.Bind, settings, nil); err != nil {
		return nil, err
	}
	return a, a.Load()
}

// Keys are what Parse knows.
func Keys() []string { return componentflags.Keys(new(Flags).Bind, nil) }

// Load reads the files that the flags name.
func (a *Flags) Load() (err error) {
	if err := a.serving.check(); err != nil {
		return err
	}
	if a.on, err = turnedOn(a.gates); err != nil {
		return err
	}
	if a.also, err = versions(a.runtimeConfig); err != nil {
		return err
	}
	if a.admission, err = plugin.Load(a.admissionFile, a.enable, a.disable); err != nil {
		return err
	}
	if err := a.authz.load(a.set.Changed); err != nil {
		return err
	}
	if err := a.authn.load(a.set.Changed, slices.Contains(a.authz.modes, structured.AlwaysAllow)); err != nil {
		return err
	}
	a.admission.NotReadySeconds, a.admission.UnreachableSeconds = &a.notReady, &a.unreachable
	switch {
	case a.encryptionFile != "":
		if a.keys, err = encryption.Load(a.encryptionFile); err != nil {
			return fmt.Errorf("--encryption-provider-config: %w", err)
		}
	case a.reloadEncryption:
		return errors.New("--encryption-provider-config-automatic-reload: name the file with --encryption-provider-config")
	}
	a.audit, err = a.auditing.load()
	return err
}

// EncryptionFile is the file that says what is encrypted at rest, if any.
func (a *Flags) EncryptionFile() string { return a.encryptionFile }

// Features are those for controllers: that are on, and whose kinds are served.
func (a *Flags) Features() features.Set {
	on := features.Set{}
	for _, feature := range []string{features.ScaleToZero, features.StorageVersions} {
		on[feature] = a.on[feature]
	}
	for feature, version := range map[string]schema.GroupVersion{
		features.StorageVersionMigrator: storagemigrationv1beta1.SchemeGroupVersion,
		features.TrustBundles:           certificatesv1beta1.SchemeGroupVersion,
		features.PodCertificates:        certificatesv1beta1.SchemeGroupVersion,
	} {
		on[feature] = a.on[feature] && slices.Contains(a.also, version)
	}
	return on
}

// Apply completes an API server's Config with what was loaded.
func (a *Flags) Apply(c *apiserver.Config) error {
	c.NoProfiling = !a.profiling
	a.serving.apply(c)
	c.EnableAdmission, c.DisableAdmission, c.Admission = a.enable, a.disable, a.admission
	c.Features, c.APIs = a.on, a.also
	c.Encryption, c.ReloadEncryption, c.Audit = a.keys, a.reloadEncryption, a.audit
	c.Authorization = a.authz.config
	return a.authn.apply(c)
}
