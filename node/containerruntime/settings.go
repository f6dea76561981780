package containerruntime

import (
	"path/filepath"
	"runtime"
)

// settings gives the configuration of each of containerd's plugins that does
// not run on its defaults, in the form of its configuration file.
func settings(c Config, h host) map[string]map[string]any {
	return map[string]map[string]any{
		"io.containerd.grpc.v1.cri": {
			"disable_tcp_service":   true,
			"stream_server_address": c.StreamAddress,
			"stream_server_port":    "0",
			"stream_idle_timeout":   "4h",
		},
		"io.containerd.cri.v1.images": {
			"snapshotter":              h.snapshotter,
			"pinned_images":            map[string]any{"sandbox": c.SandboxImage},
			"registry":                 map[string]any{"config_path": c.RegistryConfigDir},
			"max_concurrent_downloads": 3,
			// Every file of every container's layer is looked at this often, in seconds.
			"stats_collect_period": 30,
		},
		"io.containerd.cri.v1.runtime": {
			"disable_hugetlb_controller":   !h.hugetlb,
			"restrict_oom_score_adj":       h.restrictOOM,
			"netns_mounts_under_state_dir": true,
			"ignore_deprecation_warnings":  []string{"io.containerd.deprecation/cgroup-v1"},
			"enable_selinux":               h.selinux,
			// Samples of every container and pod, to compute a rate by. Without them it is
			// that between two looks of the kubelet, which costs nothing more.
			"stats_collect_period": "1h",
			"cni": map[string]any{
				"bin_dir":               "",
				"bin_dirs":              []string{c.CNIBinDir},
				"conf_dir":              c.CNIConfDir,
				"use_internal_loopback": true,
			},
			"containerd": map[string]any{
				"default_runtime_name": "runc",
				"runtimes":             runtimes(c, h),
			},
		},
		"io.containerd.nri.v1.nri":      c.nri(h.nriTaken),
		"io.containerd.shim.v1.manager": {"socket_dir": h.shimSockets},
		"io.containerd.transfer.v1.local": {
			"config_path": c.RegistryConfigDir,
			"unpack_config": []map[string]any{{
				"platform":    "linux/" + runtime.GOARCH,
				"snapshotter": h.snapshotter,
			}},
		},
		"io.containerd.service.v1.diff-service": {"default": []string{"walking"}},
	}
}

// runcRoot is where runc keeps the state of running containers; its default is
// shared by the whole machine.
func runcRoot(c Config) string { return filepath.Join(c.State, "runc") }
