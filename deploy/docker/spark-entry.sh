#!/bin/sh
# Entry point that Spark on Kubernetes expects: `executor` starts an executor with the variables
# that the driver has set (SPARK_...), `driver` starts spark-submit in a driver pod that the Spark
# operator has created. Anything else is a command, as in the image without Spark.
set -eu

case "${1:-}" in
  executor)
    # SPARK_JAVA_OPT_0, _1, ...: one option each, with spaces in it. In the order of their numbers.
    shift
    set --
    number=0
    while option=$(printenv "SPARK_JAVA_OPT_$number"); do
      set -- "$@" "$option"
      number=$((number + 1))
    done
    exec java "$@" \
      "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CLASSPATH:-}:${SPARK_CONF_DIR:-/opt/spark/conf}:$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  driver)
    shift
    exec spark-submit --deploy-mode client \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  *)
    exec "$@"
    ;;
esac
