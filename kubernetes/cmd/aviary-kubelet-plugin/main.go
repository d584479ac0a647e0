// aviary-kubelet-plugin is the DRA driver of one node: docs/kubernetes.md.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"aviary.dev/kubernetes/internal/cdi"
	"aviary.dev/kubernetes/internal/claims"
	"aviary.dev/kubernetes/internal/driver"
	"aviary.dev/kubernetes/internal/node"
	"aviary.dev/kubernetes/internal/store"
)

var (
	nodeName    = flag.String("node", os.Getenv("NODE_NAME"), "name of this node")
	kubeconfig  = flag.String("kubeconfig", "", "file with the API server's address; empty: that of the pod")
	socket      = flag.String("socket", "/run/aviary/node.sock", "socket of the node daemon")
	sockets     = flag.String("sockets", "/run/aviary/grants", "folder in which the daemon makes a socket for each claim")
	libraries   = flag.String("libraries", "/usr/lib/aviary", "folder of the libraries for containers, as the container runtime sees it")
	plugins     = flag.String("plugins", "/var/lib/kubelet/plugins", "folder of the kubelet's plugins")
	registry    = flag.String("registry", "/var/lib/kubelet/plugins_registry", "folder in which the kubelet looks for plugins")
	cdiFolder   = flag.String("cdi", "/var/run/cdi", "folder of CDI files")
	address     = flag.String("address", os.Getenv("AVIARY_ADDRESS"), "HOST:PORT where other nodes reach the daemon; empty: its devices are for pods of this node only")
	certificate = flag.String("certificate", "", "file with the daemon's certificate, with --address")
	patience    = flag.Duration("patience", 10*time.Second, "how long another node may take to answer")
	metricsAt   = flag.String("metrics", "", "ADDRESS:PORT where /metrics is served; empty: nowhere")
	grace       = flag.Duration("grace", 5*time.Minute, "how long claims keep a device that is lost, before their pods are evicted; 0: for ever")
)

func main() {
	klog.InitFlags(nil)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "aviary-kubelet-plugin: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if *nodeName == "" {
		return fmt.Errorf("--node, or NODE_NAME in the environment, must say which node this is")
	}
	pin, err := pinOf()
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	// Of its own: the API server divides its time itself.
	config.QPS, config.Burst = 100, 200
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	own := filepath.Join(*plugins, claims.Driver)
	for _, folder := range []string{own, *registry, *cdiFolder} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	kept, err := store.Open(filepath.Join(own, "claims"))
	if err != nil {
		return err
	}
	settings := driver.Settings{Node: *nodeName, Sockets: *sockets, Address: *address, Pin: pin, Patience: *patience, Grace: *grace,
		Zone: zoneOf(ctx, client)}
	plugin := driver.New(settings, client, node.Daemon{Socket: *socket}, kept, cdi.Files{Folder: *cdiFolder, Libraries: *libraries})
	helper, err := kubeletplugin.Start(ctx, plugin, kubeletplugin.DriverName(claims.Driver), kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(*nodeName), kubeletplugin.RegistrarDirectoryPath(*registry),
		kubeletplugin.PluginDataDirectoryPath(own), kubeletplugin.ReconcilePoolWithName(*nodeName),
		// One claim may wait for another node; those beside it do not.
		kubeletplugin.Serialize(false))
	if err != nil {
		return err
	}
	defer helper.Stop()
	ended := make(chan error, 4)
	if *metricsAt != "" {
		server := &http.Server{Addr: *metricsAt, Handler: plugin.Metrics.Handler(plugin.Conditions), ReadHeaderTimeout: 10 * time.Second}
		defer server.Close()
		go func() { ended <- server.ListenAndServe() }()
	}
	go func() { ended <- plugin.Watch(ctx) }()
	go func() { ended <- plugin.WatchNode(ctx) }()
	go func() { ended <- plugin.Publish(ctx, helper) }()
	select {
	case err := <-ended:
		if ctx.Err() == nil {
			return err
		}
	case <-ctx.Done():
	}
	return nil
}

// pinOf is the SHA-256 by which other nodes know the daemon.
func pinOf() (string, error) {
	if *address == "" {
		return "", nil
	}
	data, err := os.ReadFile(*certificate)
	if err != nil {
		return "", fmt.Errorf("--address needs --certificate, a file with the daemon's certificate: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return "", fmt.Errorf("--certificate: %s has no certificate at first", *certificate)
	}
	digest := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(digest[:]), nil
}

// zoneOf is the node's label; empty: it has none.
func zoneOf(ctx context.Context, client kubernetes.Interface) string {
	self, err := client.CoreV1().Nodes().Get(ctx, *nodeName, metav1.GetOptions{})
	if err != nil {
		klog.FromContext(ctx).Error(err, "the node's zone is not known")
		return ""
	}
	return self.Labels["topology.kubernetes.io/zone"]
}
