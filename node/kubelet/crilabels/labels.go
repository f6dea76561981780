// Package crilabels names the labels and annotations by which sandboxes and
// containers of the runtime belong to pods. It reads and writes nothing. The names
// are upstream's, so that a kubelet takes over what another one started.
package crilabels

// Labels and annotations of sandboxes and containers.
const (
	PodName       = "io.kubernetes.pod.name"
	PodNamespace  = "io.kubernetes.pod.namespace"
	PodUID        = "io.kubernetes.pod.uid"
	ContainerName = "io.kubernetes.container.name"

	ContainerHash            = "io.kubernetes.container.hash"
	RestartCount             = "io.kubernetes.container.restartCount"
	TerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	TerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	PreStopHandler           = "io.kubernetes.container.preStopHandler"
	ContainerPorts           = "io.kubernetes.container.ports"
	DeletionGracePeriod      = "io.kubernetes.pod.deletionGracePeriod"
	TerminationGracePeriod   = "io.kubernetes.pod.terminationGracePeriod"

	// MemoryRequest, in bytes, is of a container that begins anew when it changes: the
	// runtime does not know of it, and upstream keeps it in a file.
	MemoryRequest = "knarr.io/memory-request"
)
