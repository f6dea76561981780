// Package localpath says what the API server's admission and the provisioners of local
// volumes both have to know of them: who a node's provisioner is, and how its volumes are
// named. It reads and writes nothing.
package localpath

import "k8s.io/apimachinery/pkg/types"

const (
	// Provisioner is the name of the driver, and of the provisioner that classes name.
	Provisioner = "local-path.knarr.io"
	// K3sProvisioner is what classes for k3s name; its driver is Provisioner too.
	K3sProvisioner = "rancher.io/local-path"
)

// Group and UserPrefix are whom a node's provisioner is towards the API server: a user of
// the group, whose name ends with the node's.
const (
	Group      = "system:knarr:local-path"
	UserPrefix = "system:knarr:local-path:"
)

// VolumePrefix begins the name of a claim's PersistentVolume, as external-provisioner has
// it; the claim's UID ends it.
const VolumePrefix = "pvc-"

// VolumeName is that of the PersistentVolume of a claim.
func VolumeName(claim types.UID) string { return VolumePrefix + string(claim) }

// Serves says whether classes with a provisioner of that name are served.
func Serves(provisioner string) bool {
	return provisioner == Provisioner || provisioner == K3sProvisioner
}
