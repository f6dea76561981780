package kubelet

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// eventReasons are all reasons of events that upstream's kubelet has, most of them in
// pkg/kubelet/events: "" for those that are sent here, else why not.
var eventReasons = map[string]string{
	// of containers, pods and images
	"Created": "", "Started": "", "Failed": "", "Killing": "", "Preempting": "", "BackOff": "", "ExceededGracePeriod": "",
	"FailedKillPod": "", "FailedCreatePodContainer": "", "NetworkNotReady": "",
	"ResizeDeferred": "", "ResizeInfeasible": "", "ResizeCompleted": "", "ResizeStarted": "", "ResizeError": "",
	"FailedNodeDeclaredFeaturesCheck": "Nodes declare no features, and pods need none of them",
	"Pulling":                         "", "Pulled": "", "InspectFailed": "", "ErrImageNeverPull": "",
	"Unhealthy": "", "ProbeWarning": "", "FailedSync": "", "FailedPostStartHook": "", "FailedPreStopHook": "",
	"FailedValidation": "", "FailedToRetrieveImagePullSecret": "", "DNSConfigForming": "", "MissingClusterDNS": "",
	"SandboxChanged": "", "FailedCreatePodSandBox": "",
	"FailedPodSandBoxStatus":        "what the runtime does not say of a sandbox is asked again a second later, and nothing fails by it",
	"FailedPrepareDynamicResources": "there are no dynamic resources",
	"HostIPsIPFamilyMismatch":       "the addresses of the node are those it was started with, a cloud provider changes none of them here",
	// of the node
	"NodeReady": "", "NodeNotReady": "", "NodeSchedulable": "", "NodeNotSchedulable": "", "Starting": "", "Rebooted": "", "Shutdown": "",
	"NodeHasInsufficientMemory": "", "NodeHasSufficientMemory": "", "NodeHasDiskPressure": "", "NodeHasNoDiskPressure": "",
	"NodeHasInsufficientPID": "", "NodeHasSufficientPID": "",
	"KubeletSetupFailed": "what fails at the start ends the process, which says why",
	"ContainerGCFailed":  "", "ImageGCFailed": "", "FreeDiskSpaceFailed": "", "InvalidDiskCapacity": "", "InvalidImageID": "",
	"FailedNodeAllocatableEnforcement": "", "NodeAllocatableEnforced": "", "EvictionThresholdMet": "", "Evicted": "", "SystemOOM": "",
	"PossibleMemoryBackedVolumesOnDisk": "", "CgroupV1": "", "CheckLimitsForResolvConf": "",
	// of volumes
	"FailedMount": "", "FailedMapVolume": "", "FileSystemResizeFailed": "", "FileSystemResizeSuccessful": "", "VolumeResizeFailed": "",
	"FailedAttachVolume":               "sent by the controller that attaches volumes",
	"SuccessfulAttachVolume":           "sent by the controller that attaches volumes",
	"VolumeResizeSuccessful":           "sent by who resizes a driver's volumes",
	"SuccessfulMountVolume":            "of block volumes alone, with paths of upstream's own directories",
	"AlreadyMountedVolume":             "a local volume is given to the group of each of its pods in turn, as upstream does after it",
	"FailedMountOnFilesystemMismatch":  "a local disk that has another file system is an error of its mount, which FailedMount tells",
	"VolumePermissionChangeInProgress": "",
}

// TestEventReasons: what is said to be sent is in the sources, and what is not is not.
func TestEventReasons(t *testing.T) {
	var all strings.Builder
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		all.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text := all.String()
	for reason, why := range eventReasons {
		sent := strings.Contains(text, `"`+reason+`"`)
		if rest, resize := strings.CutPrefix(reason, "Resize"); resize { // "Resize" and the condition's reason
			sent = sent || strings.Contains(text, `"Resize"+reason`) && strings.Contains(text, "PodReason"+rest)
		}
		if sent != (why == "") {
			t.Errorf("%s: in the sources: %v, why not: %q", reason, sent, why)
		}
	}
}
