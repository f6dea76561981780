// Package gatewayapi runs the Gateway API's official conformance suite on a cluster of one
// node. It reads the built knarr, builds the suite's echo server into an image, gives
// Services of type LoadBalancer addresses of a link of its own, writes the suite's report,
// and removes everything again.
package gatewayapi

import (
	"os"
	"strings"
	"testing"

	gw "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// profiles are those that are run.
var profiles = []suite.ConformanceProfileName{
	suite.GatewayHTTPConformanceProfileName, suite.GatewayGRPCConformanceProfileName, suite.GatewayTLSConformanceProfileName,
	suite.GatewayTCPConformanceProfileName, suite.GatewayUDPConformanceProfileName,
}

// TestConformance runs the suite: KNARR_GATEWAY_TEST is a single test of it, and
// KNARR_GATEWAY_REPORT where the report is written.
func TestConformance(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the cluster runs containers and must be root's")
	}
	c := start(t)
	t.Setenv("KUBECONFIG", c.kubeconfig())
	options := conformance.DefaultOptions(t)
	ip := gw.IPAddressType
	options.GatewayClassName = "knarr"
	options.ConformanceProfiles = profiles
	options.SupportedFeatures = c.features(t, options.Client)
	options.UsableNetworkAddresses = []gw.GatewaySpecAddress{{Type: &ip, Value: usable}}
	options.UnusableNetworkAddresses = []gw.GatewaySpecAddress{{Type: &ip, Value: unusable}}
	// The suite writes no report without an address and a contact: they are pages beside it.
	options.Implementation = confv1.Implementation{Organization: "knarr", Project: "knarr", URL: "../README.md", Version: c.version(t), Contact: []string{"../CONTRIBUTING.md"}}
	options.ReportOutputPath = os.Getenv("KNARR_GATEWAY_REPORT")
	options.RunTest = os.Getenv("KNARR_GATEWAY_TEST")
	if skip := os.Getenv("KNARR_GATEWAY_SKIP"); skip != "" {
		options.SkipTests = strings.Split(skip, ",")
	}
	conformance.RunConformanceWithOptions(t, options)
}
