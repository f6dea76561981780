//go:build cgo

package shim

import (
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// toConfig translates a description into libcontainer's terms.
func toConfig(id string, o *options.Options, spec *specs.Spec) (*configs.Config, error) {
	return specconv.CreateLibcontainerConfig(&specconv.CreateOpts{
		CgroupName: id, UseSystemdCgroup: o.SystemdCgroup, NoPivotRoot: o.NoPivotRoot, NoNewKeyring: o.NoNewKeyring, Spec: spec,
	})
}

// known adds what descriptions may say.
func known(f *features.Features) {
	f.MountOptions = specconv.KnownMountOptions()
	f.Linux.Namespaces = specconv.KnownNamespaces()
	f.Linux.MemoryPolicy = &features.MemoryPolicy{Modes: specconv.KnownMemoryPolicyModes(), Flags: specconv.KnownMemoryPolicyFlags()}
}
