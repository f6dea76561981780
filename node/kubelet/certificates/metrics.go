package certificates

import "github.com/prometheus/client_golang/prometheus"

// ClientFailures and ServingFailures count, under upstream's names, certificates that this
// process could not get a successor of, whoever asked for it.
var (
	ClientFailures = prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_certificate_manager_client_expiration_renew_errors",
		Help: "[ALPHA] How often the client certificate could not be renewed"})
	ServingFailures = prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_server_expiration_renew_errors",
		Help: "[ALPHA] How often the serving certificate could not be renewed"})
)

// Failed counts that neither could be renewed: who joins gets both at once.
func Failed() {
	ClientFailures.Inc()
	ServingFailures.Inc()
}
