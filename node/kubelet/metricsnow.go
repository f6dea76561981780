package kubelet

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/run"
	"knarr/node/kubelet/certificates"
	"knarr/node/kubelet/volume"
)

// A nodeCollector tells what is the case at the moment of a scrape.
type nodeCollector struct{ k *Kubelet }

func ofNow(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, "[ALPHA] "+help, labels, nil)
}

var (
	runningPodsDesc       = ofNow("kubelet_running_pods", "Pods that have a ready sandbox")
	runningContainersDesc = ofNow("kubelet_running_containers", "Containers by their state", "container_state")
	desiredPodsDesc       = ofNow("kubelet_desired_pods", "Pods that the kubelet is to run", "static")
	activePodsDesc        = ofNow("kubelet_active_pods", "Pods that are admitted and have not ended", "static")
	workingPodsDesc       = ofNow("kubelet_working_pods", "Pods by what their workers do, and by whether they are to run or are not known but to the worker (orphan) or the runtime (runtime_only)", "lifecycle", "config", "static")
	ephemeralDesc         = ofNow("kubelet_managed_ephemeral_containers", "Ephemeral containers of the pods that the kubelet is to run")
	pendingResizesDesc    = ofNow("kubelet_pod_pending_resizes", "Resizes of pods that are not done, by the reason", "reason")
	resizesDesc           = ofNow("kubelet_pod_in_progress_resizes", "Resizes of pods that are being done")
	mirrorPodsDesc        = ofNow("kubelet_mirror_pods", "Copies of static pods in the API")
	nodeNameDesc          = ofNow("kubelet_node_name", "The node's name. The count is always 1.", "node")
	cgroupVersionDesc     = ofNow("kubelet_cgroup_version", "Version of control groups")
	totalVolumesDesc      = ofNow("volume_manager_total_volumes", "Volumes of pods", "plugin_name", "state")
	clientTTLDesc         = ofNow("kubelet_certificate_manager_client_ttl_seconds", "How long the client certificate is still valid")
	pullingDesc           = ofNow("kubelet_imagemanager_ondisk_pullintents", "Pulls on disk that have not ended")
	pulledDesc            = ofNow("kubelet_imagemanager_ondisk_pulledrecords", "Images on disk of which it is known who pulled them")
	podCertsDesc          = ofNow("kubelet_podcertificate_states", "Certificates of pods by the state they are in", "signer_name", "state")
	serverTTLDesc         = ofNow("kubelet_certificate_manager_server_ttl_seconds", "How long the serving certificate is still valid")
)

// ofNode are all that a nodeCollector may tell: which of them depends on what there is.
var ofNode = []*prometheus.Desc{runningPodsDesc, runningContainersDesc, desiredPodsDesc, activePodsDesc, workingPodsDesc, ephemeralDesc, pendingResizesDesc,
	resizesDesc, mirrorPodsDesc, nodeNameDesc, cgroupVersionDesc, totalVolumesDesc, clientTTLDesc, pullingDesc, pulledDesc, podCertsDesc, serverTTLDesc}

// Describe tells of all.
func (c nodeCollector) Describe(ch chan<- *prometheus.Desc) { describeAll(ch, ofNode) }

func describeAll(ch chan<- *prometheus.Desc, all []*prometheus.Desc) {
	for _, d := range all {
		ch <- d
	}
}

// A podCount is what a kubelet has now.
type podCount struct {
	running         int
	containers      map[string]int
	desired, active map[bool]int
	volumes         map[[2]string]int // plugin and state
	pending         map[string]int    // resizes by reason
	resizing        int
}

// Collect counts.
func (c nodeCollector) Collect(ch chan<- prometheus.Metric) {
	defer run.Recover("kubelet: metrics of the node")
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	all := c.k.all()
	pods, working, ephemeral := make([]*shown, 0, len(all)), map[working]int{}, 0
	for _, w := range all {
		s := w.shown.Load()
		pods = append(pods, s)
		gone := w.isGone()
		if s.stage != "" {
			working[workingOf(s, gone)]++
		}
		if !gone {
			ephemeral += len(s.pod.Spec.EphemeralContainers)
		}
	}
	for _, of := range everyWorking {
		for _, of.lifecycle = range stages {
			send(workingPodsDesc, float64(working[of]), of.lifecycle, of.config, of.static)
		}
	}
	send(ephemeralDesc, float64(ephemeral))
	n := countPods(pods)
	send(runningPodsDesc, float64(n.running))
	for state, v := range n.containers {
		send(runningContainersDesc, float64(v), state)
	}
	for _, static := range []bool{true, false} {
		label := map[bool]string{true: "true", false: ""}[static] // as upstream has it
		send(desiredPodsDesc, float64(n.desired[static]), label)
		send(activePodsDesc, float64(n.active[static]), label)
	}
	for reason, v := range n.pending {
		send(pendingResizesDesc, float64(v), reason)
	}
	send(resizesDesc, float64(n.resizing))
	for of, v := range n.volumes {
		send(totalVolumesDesc, float64(v), of[0], of[1])
	}
	c.k.mu.Lock()
	mirrors := len(c.k.mirrors)
	c.k.mu.Unlock()
	send(mirrorPodsDesc, float64(mirrors))
	send(nodeNameDesc, 1, c.k.cfg.NodeName)
	send(cgroupVersionDesc, map[bool]float64{true: 2, false: 1}[c.k.cgroups.V2()])
	if c.k.records != nil {
		pulling, pulled := c.k.records.Sizes()
		send(pullingDesc, float64(pulling))
		send(pulledDesc, float64(pulled))
	}
	if c.k.certificates != nil {
		for of, v := range c.k.certificates.States(time.Now()) {
			send(podCertsDesc, float64(v), of.Signer, of.State)
		}
	}
	if end, ok := clientCertificateEnd(c.k.cfg.Kube); ok {
		send(clientTTLDesc, time.Until(end).Seconds())
	}
	serving := c.k.cfg.CertFile
	if c.k.cfg.Settings.ServerTLSBootstrap {
		serving = certificates.ServingFile(c.k.cfg.CertDir)
	}
	if end, ok := certificateEnd(serving); ok {
		send(serverTTLDesc, time.Until(end).Seconds())
	}
}

// stages are what a worker does for its pod: runs it, ends its containers, has ended them.
var stages = []string{"sync", "terminating", "terminated"}

func (w *worker) stage() string {
	switch {
	case w.ended == nil:
		return stages[0]
	case w.ended.rejected:
		return ""
	case !w.statusTerminal():
		return stages[1]
	}
	return stages[2]
}

// working is what pods are counted by that have a worker.
type working struct{ lifecycle, config, static string }

var everyWorking = []working{
	{config: "desired", static: "true"}, {config: "desired"}, {config: "orphan", static: "true"}, {config: "orphan"}, {config: "runtime_only", static: "unknown"},
}

// workingOf is what a pod is counted by; gone says that nobody wants it any more.
func workingOf(s *shown, gone bool) working {
	out := working{lifecycle: s.stage, config: "desired"}
	if isStatic(s.pod) {
		out.static = "true"
	}
	switch {
	case gone && out.static == "" && s.pod.ResourceVersion == "": // neither of the API nor of a manifest: lostPods made it
		out.config, out.static = "runtime_only", "unknown"
	case gone:
		out.config = "orphan"
	}
	return out
}

// countPods counts pods, containers and volumes. Pure.
func countPods(pods []*shown) podCount {
	n := podCount{containers: map[string]int{}, desired: map[bool]int{}, active: map[bool]int{}, volumes: map[[2]string]int{}, pending: map[string]int{}}
	for _, s := range pods {
		static := isStatic(s.pod)
		n.desired[static]++
		if phase := s.status.Phase; phase != corev1.PodFailed && phase != corev1.PodSucceeded {
			n.active[static]++
		}
		for _, c := range s.status.Conditions {
			switch {
			case c.Status != corev1.ConditionTrue || s.ended:
			case c.Type == corev1.PodResizePending && resizeReasons[c.Reason] != "":
				n.pending[resizeReasons[c.Reason]]++
			case c.Type == corev1.PodResizeInProgress:
				n.resizing++
			}
		}
		if s.observed != nil {
			if _, ok := s.observed.ReadySandbox(); ok {
				n.running++
			}
			for _, c := range s.observed.Containers {
				n.containers[containerStateName(c.State)]++
			}
		}
		for i := range s.pod.Spec.Volumes {
			v := &s.pod.Spec.Volumes[i]
			plugin := volume.PluginOf(v)
			if m, ok := s.volumes[v.Name]; ok {
				plugin = cmp.Or(m.Plugin(), plugin)
				n.volumes[[2]string{plugin, "actual_state_of_world"}]++
			}
			if !s.ended {
				n.volumes[[2]string{plugin, "desired_state_of_world"}]++
			}
		}
	}
	return n
}

// resizeReasons are the reasons of resizes that are not done, as they are counted.
var resizeReasons = map[string]string{corev1.PodReasonDeferred: "deferred", corev1.PodReasonInfeasible: "infeasible"}

var containerStates = map[cri.ContainerState]string{
	cri.ContainerState_CONTAINER_CREATED: "created", cri.ContainerState_CONTAINER_RUNNING: "running", cri.ContainerState_CONTAINER_EXITED: "exited",
}

func containerStateName(s cri.ContainerState) string {
	if name := containerStates[s]; name != "" {
		return name
	}
	return "unknown"
}

// clientCertificateEnd is when the certificate ends that the API server is shown;
// false if it is shown none.
func clientCertificateEnd(c *rest.Config) (time.Time, bool) {
	if len(c.CertData) > 0 {
		return pemEnd(c.CertData)
	}
	return certificateEnd(c.CertFile)
}

func certificateEnd(file string) (time.Time, bool) {
	if file == "" {
		return time.Time{}, false
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return time.Time{}, false
	}
	return pemEnd(b)
}

func pemEnd(b []byte) (time.Time, bool) {
	block, _ := pem.Decode(b)
	if block == nil {
		return time.Time{}, false
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, false
	}
	return c.NotAfter, true
}
