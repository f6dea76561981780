package kubelet

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
	"FailedNodeDeclaredFeaturesCheck": "of a change of a pod that needs a feature which is not declared: all that a change can need are. " +
		"A new pod that needs one is refused, with the reason PodFeatureUnsupported",
	"Pulling": "", "Pulled": "", "InspectFailed": "", "ErrImageNeverPull": "",
	"Unhealthy": "", "ProbeWarning": "", "FailedSync": "", "FailedPostStartHook": "", "FailedPreStopHook": "",
	"FailedValidation": "", "FailedToRetrieveImagePullSecret": "", "DNSConfigForming": "", "MissingClusterDNS": "",
	"SandboxChanged": "", "FailedCreatePodSandBox": "", "DeadlineExceeded": "", "LifecycleHTTPFallback": "",
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

// ownReasons are those that are sent here and upstream's kubelet does not have, and why.
var ownReasons = map[string]string{
	"PullProgress":    "how far a pull has come; upstream's runtime does not tell",
	"FailedStaticPod": "a manifest that is no pod, or no valid one; upstream only logs it",
	"FailedUnmount":   "a pod that cannot end because of a volume; upstream only logs it",
}

// chosenReasons are reasons that do not stand in the call which sends them, and what in the
// sources chooses them.
var chosenReasons = map[string]string{
	"NodeReady": `{corev1.NodeReady, "NodeReady", "NodeNotReady"}`, "NodeNotReady": `{corev1.NodeReady, "NodeReady", "NodeNotReady"}`,
	"NodeHasInsufficientMemory": `{corev1.NodeMemoryPressure, "NodeHasInsufficientMemory", "NodeHasSufficientMemory"}`,
	"NodeHasSufficientMemory":   `{corev1.NodeMemoryPressure, "NodeHasInsufficientMemory", "NodeHasSufficientMemory"}`,
	"NodeHasDiskPressure":       `{corev1.NodeDiskPressure, "NodeHasDiskPressure", "NodeHasNoDiskPressure"}`,
	"NodeHasNoDiskPressure":     `{corev1.NodeDiskPressure, "NodeHasDiskPressure", "NodeHasNoDiskPressure"}`,
	"NodeHasInsufficientPID":    `{corev1.NodePIDPressure, "NodeHasInsufficientPID", "NodeHasSufficientPID"}`,
	"NodeHasSufficientPID":      `{corev1.NodePIDPressure, "NodeHasInsufficientPID", "NodeHasSufficientPID"}`,
	"NodeSchedulable":           `reason := "NodeSchedulable"`, "NodeNotSchedulable": `reason = "NodeNotSchedulable"`,
	"CgroupV1": `warn("CgroupV1"`, "PossibleMemoryBackedVolumesOnDisk": `warn("PossibleMemoryBackedVolumesOnDisk"`,
	"CheckLimitsForResolvConf": `warn("CheckLimitsForResolvConf"`,
	"FailedMount":              `reason := "FailedMount"`, "FailedMapVolume": `reason = "FailedMapVolume"`,
	"Unhealthy": `reason := "Unhealthy"`, "ProbeWarning": `reason = "ProbeWarning"`,
	"DNSConfigForming": `Reason: "DNSConfigForming"`, "MissingClusterDNS": `Note{"MissingClusterDNS"`,
	"ResizeDeferred": `"Resize"+reason`, "ResizeInfeasible": `reason == corev1.PodReasonInfeasible`,
}

// TestEventReasons: what is said to be sent stands in a call that sends it, or is chosen for
// one, what is not does not, and nothing is sent that no list has.
func TestEventReasons(t *testing.T) {
	sent, text := sentReasons(t)
	for reason, from := range chosenReasons {
		if !strings.Contains(text, from) {
			t.Errorf("%s: nothing in the sources is %s", reason, from)
		}
		sent[reason] = true
	}
	for reason, why := range eventReasons {
		if sent[reason] != (why == "") {
			t.Errorf("%s: sent: %v, why not: %q", reason, sent[reason], why)
		}
	}
	for reason := range sent {
		_, theirs := eventReasons[reason]
		if _, ours := ownReasons[reason]; theirs == ours {
			t.Errorf("%s is sent, and of upstream's: %v, of our own: %v", reason, theirs, ours)
		}
	}
	for reason := range ownReasons {
		if !sent[reason] {
			t.Errorf("%s is not sent any more", reason)
		}
	}
}

// sentReasons are the words that stand in calls of functions of events, and all sources.
func sentReasons(t *testing.T) (sent map[string]bool, text string) {
	sent = map[string]bool{}
	var all strings.Builder
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		all.Write(b)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !strings.Contains(strings.ToLower(called(call)), "event") {
				return true
			}
			for _, arg := range call.Args {
				if l, ok := arg.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if word, err := strconv.Unquote(l.Value); err == nil && isReason(word) {
						sent[word] = true
					}
				}
			}
			return true
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sent, all.String()
}

// called is the name of the function that is called.
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// isReason tells reasons, one word that begins with a large letter, from messages and keys.
func isReason(word string) bool {
	return word != "" && word[0] >= 'A' && word[0] <= 'Z' && !slices.ContainsFunc([]byte(word), func(c byte) bool { return c == ' ' || c == '%' || c == ':' })
}
